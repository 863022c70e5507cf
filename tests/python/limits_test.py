"""Jobs under limits of the shell: they run, or end with one sentence that says what is missing."""

import os
import resource
import subprocess

import pytest
from conftest import ENVIRONMENT, Echelon

GIGABYTE = 10**9


@pytest.mark.parametrize("gigabytes", [0.5, 1, 2, 4, 8, 16, 26])
def test_address_space_may_be_limited(echelon, text, gigabytes):
    """'ulimit -v': torch alone maps most of a gigabyte."""
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (int(gigabytes * GIGABYTE),) * 2)

    arguments = Echelon.train_arguments("--nproc", 2, "--name", "limited", train_steps=2)
    result = subprocess.run([str(echelon.program), *arguments], cwd=echelon.folder, capture_output=True, text=True,
                            stdin=subprocess.DEVNULL, timeout=120, env=ENVIRONMENT, preexec_fn=limit)
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    if gigabytes >= 4:
        assert result.returncode == 0, result.stderr
    if result.returncode == 0:
        return
    assert len(lines) <= 3 and "terminate called" not in result.stderr, result.stderr
    assert "ulimit -v" in result.stderr or "memory" in result.stderr or "cannot" in result.stderr, result.stderr


def test_far_more_threads_than_cores_are_refused(echelon, text):
    result = echelon.train("--name", "threads", train_threads=1000)
    cores = len(os.sched_getaffinity(0))
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert "train.threads = 1000 is too many for the" in result.stderr, (cores, result.stderr)
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
