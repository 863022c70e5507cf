"""All of PyTorch's own distributed tests that Gloo passes on the CPU, over the backend "echelon"."""

from torch_suite_test import HERE, check, gloo_passes, outcome


def test_everything_that_gloo_passes(tmp_path):
    check(outcome(tmp_path), gloo_passes())


def test_what_torch_keeps_for_mpi(tmp_path):
    """Exchanges of all with all, and groups of some ranks, at four ranks; torch runs them over MPI alone."""
    names = (HERE / "torch_suite_mpi.txt").read_text().split()
    check(outcome(tmp_path, "--like", "mpi", "--world", "4", "--tests", HERE / "torch_suite_mpi.txt"), names)
