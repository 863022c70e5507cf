"""Jobs under limits of the shell: they run, or end with one sentence that says what is missing."""

import os
import resource
import socket
import subprocess

import pytest
from conftest import ENVIRONMENT, Echelon

GIGABYTE = 10**9


@pytest.mark.parametrize("gigabytes", [0.45, 0.5, 0.55, 0.6, 0.63, 0.65, 0.7, 1, 2, 4, 8, 16, 26])
def test_address_space_may_be_limited(echelon, text, gigabytes):
    """'ulimit -v': torch's libraries alone take 0.4 GB of it."""
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (int(gigabytes * GIGABYTE),) * 2)

    arguments = Echelon.train_arguments("--nproc", 2, "--name", "limited", train_steps=2, optim_warmup=0)
    result = subprocess.run([str(echelon.program), *arguments], cwd=echelon.folder, capture_output=True, text=True,
                            stdin=subprocess.DEVNULL, timeout=120, env=ENVIRONMENT, preexec_fn=limit)
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    if gigabytes >= 4:
        assert result.returncode == 0, result.stderr
    if result.returncode == 0:
        return
    assert result.returncode in (1, 2) and len(lines) <= 3 and "terminate called" not in result.stderr, result.stderr
    assert "ulimit -v" in lines[0], result.stderr


def test_too_few_threads_are_said():
    """'ulimit -u' counts all processes of a user and does not hold for root, so a user without others is given it."""
    user = dict(user=65533, group=65533, extra_groups=[]) if os.geteuid() == 0 else {}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    rank = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ECHELON_TOKEN": "t" * 20}
    echelon = Echelon("/")
    try:
        able = echelon("version", **user).returncode == 0
    except PermissionError:
        able = False
    if not able:
        pytest.skip("no other user may run the program where it lies")
    result = subprocess.run([str(echelon.program), "topo", "--sizes", "64"], cwd="/", capture_output=True, text=True,
                            stdin=subprocess.DEVNULL, timeout=120, env=ENVIRONMENT | rank, **user,
                            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (1, 1)))
    assert result.returncode == 1 and result.stderr.count("\n") == 1, result.stderr
    assert "no more threads can be started: raise the limit" in result.stderr, result.stderr


def test_far_more_threads_than_cores_are_refused(echelon, text):
    result = echelon.train("--name", "threads", train_threads=1000)
    cores = len(os.sched_getaffinity(0))
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert "train.threads = 1000 is too many for the" in result.stderr, (cores, result.stderr)
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
