"""State that is kept on disk: models that memory has no room for, jobs that are killed, folders that do not do."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import ENVIRONMENT

MIB = 1024 * 1024


def losses(run):
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def limited():
    """Makes a control group with so many bytes of memory; gives what a process calls to be in it."""
    made = []

    def make(limit):
        if os.geteuid() != 0:
            pytest.skip("a memory control group needs root")
        root, files = Path("/sys/fs/cgroup/memory"), {"memory.limit_in_bytes": limit}
        if not root.is_dir():
            root, files = Path("/sys/fs/cgroup"), {"memory.max": limit, "memory.swap.max": 0}
        group = root / f"echelon-test-{os.getpid()}"
        try:
            group.mkdir()
            made.append(group)
            for name, value in files.items():
                (group / name).write_text(str(value))
        except OSError as error:
            pytest.skip(f"a memory control group cannot be made here: {error}")
        return lambda: (group / "cgroup.procs").write_text(str(os.getpid()))

    yield make
    for group in made:
        for _ in range(50):
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.1)


def test_a_model_trains_that_has_four_times_the_memory(echelon, limited, tmp_path):
    settings = dict(data_source="random", model_layers=120, model_width=256, model_heads=4, model_context=16, train_batch=2,
                    train_steps=3, optim_warmup=1, parallel_zero=3, zero_prefetch=0, zero_group=0, zero_piece=0.5,
                    model_recompute="full", train_save_last=False)
    expected = echelon.train_well("unlimited", "--nproc", 2, **settings)
    params = 120 * 12 * 256 * 256
    limit = 4 * params  # a quarter of fp32's 16 bytes a parameter
    disk = tmp_path / "disk"
    disk.mkdir()
    enter = limited(limit)

    def run(name, **more):
        return echelon(*echelon.train_arguments("--name", name, "--nproc", 2, **settings | more), preexec_fn=enter)

    refused = run("whole")  # by the kernel, or by a look at what there is
    assert refused.returncode != 0, refused.stdout
    result = run("limited", zero_offload="disk", zero_offload_path=disk)
    assert result.returncode == 0, result.stdout + result.stderr
    assert losses(echelon.folder / "runs/limited") == losses(expected)
    assert len(losses(expected)) == 3
    assert list(disk.iterdir()) == []
    used = json.loads((echelon.folder / "runs/limited/memory.json").read_text())
    assert sum(rank["tensors_peak_bytes"] for rank in used["ranks"]) < limit
    assert 2 * used["predicted_disk_bytes"] >= 16 * params


def test_a_killed_job_says_what_is_lost_and_goes_on_to_the_same_bits(echelon, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    settings = dict(parallel_zero=3, zero_offload="disk", zero_offload_path=disk, zero_group=0, train_save_every=5,
                    train_steps=200, data_source="random", model_vocab=64)
    process = subprocess.Popen(
        [str(echelon.program), *echelon.train_arguments("--nproc", 2, "--name", "killed", **settings)],
        cwd=echelon.folder, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    metrics = echelon.folder / "runs/killed/metrics.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (not metrics.exists() or len(metrics.read_text().splitlines()) < 12):
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for _ in range(100):  # the ranks are children of a launcher that is gone
        if not subprocess.run(["pgrep", "-f", str(disk)], capture_output=True).stdout:
            break
        time.sleep(0.05)
    assert sorted(path.name for path in disk.iterdir()) == ["echelon-rank-0.slices", "echelon-rank-1.slices"]

    result = echelon("train", "--nproc", 2, "--resume", "runs/killed", "--set", "train.steps=30")
    assert result.returncode == 0, result.stdout + result.stderr
    words = result.stderr + (echelon.folder / "runs/killed/rank0.log").read_text()
    assert "echelon-rank-0.slices was left by a process that was killed, rank 0 of 2" in words
    assert "is whole, and the run goes on from there" in words
    assert list(disk.iterdir()) == []
    whole = echelon.train_well("whole", "--nproc", 2, **settings | dict(train_steps=30))
    assert losses(echelon.folder / "runs/killed") == losses(whole)


@pytest.mark.parametrize("settings, words", [
    (dict(parallel_zero=4), "parallel.zero"),
    (dict(parallel_zero=-1), "parallel.zero"),
    (dict(zero_offload="host"), "set parallel.zero too"),
    (dict(parallel_zero=1, zero_offload="disk"), "set zero.offload_path"),
    (dict(parallel_zero=1, zero_offload="tape"), "zero.offload"),
    (dict(parallel_zero=1, zero_offload="disk", zero_offload_path="/no/such/folder"), "there is no folder"),
    (dict(parallel_zero=1, zero_offload="disk", zero_offload_path="/proc"), "cannot be written"),  # not by root either
    (dict(parallel_zero=3, train_memory_mib=0.1), "less than a MiB"),
    (dict(parallel_zero=3, train_memory_mib=1, model_width=256, zero_group=0), "in one piece, and a rank may take"),
])
def test_what_cannot_work_is_refused_before_the_first_step(echelon, settings, words):
    result = echelon.train("--nproc", 2, "--name", "job", **settings)
    assert result.returncode != 0
    assert words in result.stderr, result.stderr
    assert not (echelon.folder / "runs/job/metrics.jsonl").exists()


def test_a_disk_that_is_too_small_is_refused(echelon, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)], capture_output=True).returncode != 0:
        pytest.skip("a file system cannot be mounted here")
    try:
        result = echelon.train("--nproc", 2, "--name", "job", parallel_zero=1, zero_offload="disk", zero_offload_path=small,
                               model_width=128)
        assert result.returncode != 0
        assert "give a folder with more room" in result.stderr, result.stderr
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_dry_run_predicts_and_says_what_would_fit(echelon):
    fits = echelon.train("--nproc", 4, "--dry-run")
    assert fits.returncode == 0 and "fits: a rank may take" in fits.stdout, fits.stdout + fits.stderr
    large = dict(model_layers=48, model_width=1600, model_heads=25, model_vocab=50257, model_context=1024, train_batch=16,
                 data_source="random", train_memory_mib=16 * 1024)
    result = echelon.train("--nproc", 4, "--dry-run", **large)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "does not fit: a rank needs" in result.stdout
    change = result.stdout.split("it would fit with ")[1].splitlines()[0].rstrip(":").split()
    then = echelon.train("--nproc", 4, "--dry-run", **large | {key.replace(".", "_", 1): value for key, value in
                                                               (word.split("=") for word in change)})
    assert then.returncode == 0, then.stdout
    assert not (echelon.folder / "runs").exists()


SMALL = dict(model_layers=3, model_width=128, model_heads=4, model_context=64, train_batch=12, data_source="random")


@pytest.mark.parametrize("ranks, mib", [(2, 16), (4, 11), (4, 8.5), (1, 11), (2, 9.5)])
def test_what_a_dry_run_says_would_fit_does(echelon, ranks, mib):
    result = echelon.train("--nproc", ranks, "--dry-run", **SMALL, train_memory_mib=mib)
    assert result.returncode == 1 and "it would fit with " in result.stdout, result.stdout + result.stderr
    change = result.stdout.split("it would fit with ")[1].splitlines()[0].rstrip(":").split()
    words = {key.replace(".", "_", 1): value for key, value in (word.split("=") for word in change)}
    if words.get("zero_offload_path"):
        words["zero_offload_path"] = echelon.folder
    then = echelon.train("--nproc", ranks, "--dry-run", **SMALL | words, train_memory_mib=mib)
    assert then.returncode == 0 and "fits: a rank may take" in then.stdout, f"{change}\n{then.stdout}"


def test_a_dry_run_looks_at_the_offload_folder(echelon):
    missing = echelon.train("--nproc", 2, "--dry-run", **SMALL, parallel_zero=3, zero_offload="disk",
                            zero_offload_path=echelon.folder / "missing")
    assert missing.returncode == 2 and f"there is no folder {echelon.folder / 'missing'}" in missing.stderr, missing.stderr
