"""How ranks meet, and how a job ends: other jobs at the same port, ranks that were started wrongly, who is blamed."""

import os
import re
import resource
import signal
import socket
import subprocess
import time

import pytest
from conftest import ENVIRONMENT, rank_process

TOKEN = "a token for tests of meeting"
TOPO = ("topo", "--sizes", "64")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def by_hand(echelon, rank, port, *words, world=2, **variables):
    environment = {**ENVIRONMENT, "RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(port), "ECHELON_TOKEN": TOKEN, **variables}
    return subprocess.Popen([str(echelon.program), *map(str, words)], cwd=echelon.folder, env=environment, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_until_it_listens(job, port):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        assert job.poll() is None, job.communicate()
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("nobody listens")


def end(job):
    out, err = job.communicate(timeout=60)
    return job.returncode, out, err


def test_a_rank_of_another_job_is_refused_by_name_and_the_job_goes_on(echelon):
    port = free_port()
    first = by_hand(echelon, 0, port, *TOPO, ECHELON_JOB_ID="blue")
    wait_until_it_listens(first, port)
    status, out, err = end(by_hand(echelon, 1, port, *TOPO, ECHELON_JOB_ID="red"))
    assert status == 2, out + err
    assert re.search(r'rank 1 \(pid \d+ on \S+\) is of job "red" and rank 0 \(pid \d+ on \S+\) of job "blue"', err), err
    assert f"127.0.0.1:{port}" in err and "port of its own" in err
    second = by_hand(echelon, 1, port, *TOPO, ECHELON_JOB_ID="blue")
    assert end(second)[0] == 0
    status, out, err = end(first)
    assert status == 0 and "2 ranks on 1 host" in out, out + err


def launch(echelon, node, port, *before, **variables):
    words = ["launch", "--nproc", "2", "--nodes", "2", "--node-rank", str(node), "--rendezvous", f"127.0.0.1:{port}", "--",
             *before, str(echelon.program), *TOPO]
    return subprocess.Popen([str(echelon.program), *words], cwd=echelon.folder, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, env={**ENVIRONMENT, "ECHELON_TOKEN": TOKEN, **variables})


def test_two_launches_with_one_node_rank_are_told_so(echelon):
    port = free_port()
    # Rank 1 comes last, or two of the launches would meet and finish before the third comes.
    late = ["sh", "-c", '[ "$RANK" != 1 ] || sleep 5; exec "$@"', "sh"]
    jobs = [launch(echelon, node, port, *late) for node in (0, 1, 1)]
    said = [end(job) for job in jobs]
    assert all(status in (1, 2) for status, _, _ in said), said
    # As one of the two comes first: two launches, or two processes of one rank.
    assert re.search(r"should be of one launch and are of two|two processes came as rank [23]", said[0][2]), said
    assert "node rank" in said[0][2] or "port of its own" in said[0][2], said


def test_two_processes_that_are_rank_zero_are_told_so(echelon):
    port = free_port()
    first = by_hand(echelon, 0, port, *TOPO)
    wait_until_it_listens(first, port)
    second = by_hand(echelon, 0, port, *TOPO)
    for status, out, err in (end(second), end(first)):
        assert status == 2, out + err
        assert re.search(r"two processes came as rank 0: pid \d+ on \S+ and pid \d+ on \S+", err), err


def test_a_batch_script_without_srun_is_told_to_use_it(echelon):
    script = dict(SLURM_JOB_ID="77", SLURM_PROCID="0", SLURM_LOCALID="0", SLURM_NODEID="0", SLURM_NTASKS="4",
                  SLURM_JOB_NODELIST="node[1-2]", SLURM_TASKS_PER_NODE="2(x2)")
    result = subprocess.run([str(echelon.program), *map(str, echelon.train_arguments(train_steps=2))], cwd=echelon.folder,
                            env={**ENVIRONMENT, **script}, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2, result.stdout + result.stderr
    assert "Slurm has set 4 tasks aside" in result.stderr and "put srun before the command" in result.stderr
    for ranks in (1, 2):  # who says how many means it
        result = subprocess.run([str(echelon.program), *map(str, echelon.train_arguments("--nproc", ranks, train_steps=2))],
                                cwd=echelon.folder, env={**ENVIRONMENT, **script}, capture_output=True, text=True, timeout=60)
        assert result.returncode == 0, result.stderr


def test_strangers_who_say_nothing_do_not_keep_a_job_from_starting(echelon):
    """Each of them took a turn once: 1,000 delayed a start by 33 s, 2,000 prevented it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(2000, hard - len(os.listdir("/proc/self/fd")) - 50)
    assert count >= 500, f"{hard} open files are too few for this test"
    port = free_port()
    patience = ("--set", "net.connect_timeout=20")
    first = by_hand(echelon, 0, port, *TOPO, *patience)
    wait_until_it_listens(first, port)
    strangers = []
    try:
        for _ in range(count):
            strangers.append(socket.create_connection(("127.0.0.1", port), timeout=10))
        second = by_hand(echelon, 1, port, *TOPO, *patience)
        results = end(second), end(first)
        assert [status for status, _, _ in results] == [0, 0], results
        assert "2 ranks on 1 host" in results[1][1], results
        assert 1 <= results[1][2].count("\n") <= 5 and "turned away" in results[1][2], results
    finally:
        for stranger in strangers:
            stranger.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_stopped_rank_is_named_last(echelon):
    train = echelon.train_arguments("--name", "job", train_steps=1000000, comm_timeout=3)
    job = echelon.start("launch", "--nproc", 2, "--", echelon.program, *train)
    metrics, until = echelon.folder / "runs/job/metrics.jsonl", time.monotonic() + 90
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < 5:
        assert job.poll() is None and time.monotonic() < until, job.communicate()
        time.sleep(0.02)
    stopped = rank_process(job, 1)
    os.kill(stopped, signal.SIGSTOP)
    status, out, err = end(job)
    assert status == 1, out + err
    assert re.search(rf"rank 1 \(pid {stopped}\) is stopped", err.splitlines()[-1]), err


@pytest.mark.parametrize("victim", [1, 2, 3])
def test_every_rank_of_a_pipeline_with_zero_names_the_one_that_died(echelon, victim):
    port = free_port()
    train = echelon.train_arguments("--name", "job", train_steps=1000000, model_layers=4, parallel_pipeline=2, parallel_zero=3,
                                    train_micro_batches=4, train_batch=8)
    ranks = [by_hand(echelon, rank, port, *train, world=4) for rank in range(4)]
    metrics, until = echelon.folder / "runs/job/metrics.jsonl", time.monotonic() + 90
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < 5:
        assert time.monotonic() < until and all(rank.poll() is None for rank in ranks), [end(rank) for rank in ranks]
        time.sleep(0.02)
    ranks[victim].kill()
    for rank, process in enumerate(ranks):
        status, out, err = end(process)
        if rank == victim:
            continue
        assert status == 69, out + err
        error = next(line for line in err.splitlines() if "error: " in line)
        assert re.search(rf"error: rank {victim} on \S+ \(pid {ranks[victim].pid}\) was lost", error), f"rank {rank}: {err}"


def test_a_job_with_too_few_open_files_says_how_many_it_needs(echelon):
    result = subprocess.run(["sh", "-c", f"ulimit -n 60; exec {echelon.program} topo --sizes 64"], cwd=echelon.folder,
                            env={**ENVIRONMENT, "RANK": "0", "WORLD_SIZE": "100", "MASTER_ADDR": "127.0.0.1",
                                 "MASTER_PORT": str(free_port()), "ECHELON_TOKEN": TOKEN},
                            capture_output=True, text=True, timeout=60)
    assert result.returncode == 2, result.stderr
    assert re.search(r"a job of 100 ranks needs 1\d\d open files in this process, and the limit is 60: raise", result.stderr)
