"""Parameter servers as processes: what happens when workers and servers die, and when a worker comes late."""

import json
import os
import re
import signal
import subprocess
import time

import pytest
from conftest import BUILD, rank_process

TOKEN = "a token for the tests of servers"
TINY = ["model.layers=1", "model.width=32", "model.heads=2", "model.context=32", "train.batch=8", "train.validate_every=0",
        "train.threads=1", "data.source=random", "comm.timeout=20"]


def start(folder, *arguments, settings=(), launcher=()):
    command = [*launcher, str(BUILD / "echelon"), "train", *arguments]
    for setting in [*TINY, *settings]:
        command += ["--set", setting]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=os.environ | {"ECHELON_TOKEN": TOKEN})


def steps_done(folder):
    metrics = folder / "runs/job/metrics.jsonl"
    return len(metrics.read_text().splitlines()) if metrics.exists() else 0


def wait_for_steps(job, folder, steps):
    end = time.monotonic() + 60
    while steps_done(folder) < steps:
        assert time.monotonic() < end and job.poll() is None, job.communicate()
        time.sleep(0.02)


def address_to_join(job):
    where = ""
    while "--join" not in where:
        where = job.stdout.readline()
    return re.search(r"--join (\S+)", where)[1]


def end(job):
    out, err = job.communicate(timeout=120)
    return job.returncode, out, err


@pytest.mark.parametrize("how", ["train --nproc", "launch"])
@pytest.mark.parametrize("mode", ["bounded", "async"])
def test_the_others_go_on_when_a_worker_is_killed(tmp_path, mode, how):
    launcher = [str(BUILD / "echelon"), "launch", "--nproc", "3", "--"] if how == "launch" else []
    job = start(tmp_path, *([] if launcher else ["--nproc", "3"]), "--name", "job", launcher=launcher,
                settings=["server.count=1", f"server.mode={mode}", "train.steps=600", 'chaos.slow=["2:3.0"]'])
    wait_for_steps(job, tmp_path, 20)
    os.kill(rank_process(job, 2), signal.SIGKILL)
    status, out, err = end(job)
    assert status == 0, out + err
    assert steps_done(tmp_path) == 600
    assert re.search(r"rank 2 \(pid \d+\) is gone .*; the others go on", err), err
    assert re.search(r"rank 2 \(pid \d+\) was killed by signal 9", err), err


def test_a_synchronous_job_ends_and_names_the_worker_that_was_killed(tmp_path):
    job = start(tmp_path, "--nproc", "3", "--name", "job", settings=["server.count=1", "train.steps=100000"])
    wait_for_steps(job, tmp_path, 20)
    os.kill(rank_process(job, 2), signal.SIGKILL)
    begun = time.monotonic()
    status, out, err = end(job)
    assert status == 137 and time.monotonic() - begun < 8
    assert re.search(r"rank 2 \(pid \d+\) was killed by signal 9", err), err


@pytest.mark.parametrize("mode", ["sync", "bounded", "async"])
def test_servers_begin_with_the_weights_that_are_given(tmp_path, mode):
    """Of several workers one brings them; what it brings is what a process alone would begin with."""
    steps = ["train.steps=12", "optim.warmup=2"]
    assert end(start(tmp_path, "--name", "first", settings=steps))[0] == 0
    weights = ["model.init=runs/first/weights", *steps]
    assert end(start(tmp_path, "--name", "alone", settings=weights))[0] == 0
    status, out, err = end(start(tmp_path, "--nproc", "3", "--name", "job",
                                 settings=["server.count=2", f"server.mode={mode}", *weights]))
    assert status == 0 and "signal" not in err and "gone" not in err, out + err

    def first_loss(name):
        return json.loads((tmp_path / f"runs/{name}/metrics.jsonl").read_text().splitlines()[0])

    job, alone = first_loss("job"), first_loss("alone")
    if job.get("batch", 1) == 1:
        assert abs(job["loss"] - alone["loss"]) < 1e-5, (job, alone)


def test_a_worker_that_was_dropped_is_told_why_and_how_to_come_back(tmp_path):
    job = start(tmp_path, "--nproc", "3", "--name", "job",
                settings=["server.count=2", "server.mode=bounded", "train.steps=400", "server.patience=2",
                          'chaos.slow=["0:3.0", "1:3.0", "2:3.0"]'])
    wait_for_steps(job, tmp_path, 10)
    stopped = rank_process(job, 2)
    os.kill(stopped, signal.SIGSTOP)
    wait_for_steps(job, tmp_path, steps_done(tmp_path) + 60)  # more than the bound lets through without it
    os.kill(stopped, signal.SIGCONT)
    status, out, err = end(job)
    assert status == 0, out + err
    assert re.search(r"rank 2 \(pid \d+\) has been silent for 2 s with share \d of step \d+: it is dropped", err), err
    assert re.search(r"error: parameter server 0 \(rank 0\) dropped rank 2 \(pid \d+\), which was silent for 2 s with "
                     r"share \d of step \d+: another computes it. Raise server.patience above that, or come back with "
                     r"--join [\d.:,]+", err), err
    assert "Broken pipe" not in err, err
    assert re.search(r"lost +1 of the 3 workers", out), out


@pytest.mark.parametrize("mode", ["sync", "bounded"])
def test_a_dead_server_ends_the_job_and_its_last_state_goes_on(tmp_path, mode):
    settings = ["server.count=1", "server.place=separate", f"server.mode={mode}", "train.save_every=50"]
    job = start(tmp_path, "--nproc", "3", "--name", "job", settings=[*settings, "train.steps=100000"])
    wait_for_steps(job, tmp_path, 120)
    os.kill(rank_process(job, 2), signal.SIGKILL)
    status, out, err = end(job)
    assert status == 137, out + err
    assert re.search(r"rank 2 \(pid \d+\) was killed by signal 9", err), err
    reached = steps_done(tmp_path) // 50 * 50
    job = start(tmp_path, "--nproc", "3", "--resume", "runs/job", settings=[f"train.steps={reached + 60}"])
    status, out, err = end(job)
    assert status == 0, out + err
    assert f"resumed     after step {reached}" in out
    assert steps_done(tmp_path) == reached + 60


def test_a_worker_may_join_a_job_that_runs(tmp_path):
    settings = ["server.count=1", "server.mode=bounded", "train.steps=1500"]
    job = start(tmp_path, "--nproc", "2", "--name", "job", settings=[*settings, 'chaos.slow=["0:4.0", "1:4.0"]'])
    wait_for_steps(job, tmp_path, 10)
    newcomer = start(tmp_path, "--join", address_to_join(job), settings=settings)
    status, out, err = end(newcomer)
    assert status == 0 and "left        after step 1500" in out, out + err
    assert end(job)[0] == 0
    lines = [json.loads(line) for line in (tmp_path / "runs/job/metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 1500 and max(age for line in lines for age in line["ages"]) <= 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("mode, place", [("sync", "colocated"), ("bounded", "colocated"), ("sync", "separate"),
                                         ("bounded", "separate")])
def test_a_signal_ends_after_a_whole_step_and_the_run_goes_on(tmp_path, mode, place, count, number):
    settings = [f"server.count={count}", f"server.place={place}", f"server.mode={mode}", "train.steps=100000"]
    ranks = str(2 + count)
    job = start(tmp_path, "--nproc", ranks, "--name", "job", settings=settings)
    wait_for_steps(job, tmp_path, 20)
    job.send_signal(number)
    status, out, err = end(job)
    assert status == 130 and err == "", out + err
    after = int(re.search(r"interrupted after step (\d+)", out)[1])
    assert steps_done(tmp_path) == after
    job = start(tmp_path, "--nproc", ranks, "--resume", "runs/job", settings=[f"train.steps={after + 10}"])
    status, out, err = end(job)
    assert status == 0 and f"resumed     after step {after}" in out, out + err
    assert steps_done(tmp_path) == after + 10


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("place, ranks", [("colocated", [0, 1]), ("separate", [0, 2, 3])])
def test_the_memory_of_servers_is_recorded(tmp_path, mode, place, ranks):
    """Where workers may be gone at the end: of the first of them, and of all servers."""
    job = start(tmp_path, "--nproc", "4", "--name", "job",
                settings=["server.count=2", f"server.place={place}", f"server.mode={mode}", "train.steps=10"])
    status, out, err = end(job)
    assert status == 0, out + err
    memory = json.loads((tmp_path / "runs/job/memory.json").read_text())["ranks"]
    assert [one["rank"] for one in memory] == ([0, 1, 2, 3] if mode == "sync" else ranks)
    for one in memory:
        serves = one["rank"] in ranks[-2:]
        assert one["tensors_at_peak_bytes"]["optimizer"] > 0 or not serves, memory
        assert one["process_peak_bytes"] > one["tensors_peak_bytes"] > 0, memory


@pytest.mark.parametrize("wrong", ["train.batch=16", "train.seed=7", "model.width=64", "data.source=stdlib"])
def test_a_worker_with_other_options_may_not_join(tmp_path, wrong):
    settings = ["server.count=1", "server.mode=bounded", "train.steps=100000"]
    job = start(tmp_path, "--nproc", "2", "--name", "job", settings=settings)
    wait_for_steps(job, tmp_path, 2)
    status, out, err = end(start(tmp_path, "--join", address_to_join(job), settings=[*settings, wrong]))
    assert status == 2 and wrong.split("=")[0] in err and "where the job has" in err, out + err
    job.send_signal(signal.SIGINT)
    assert end(job)[0] == 130


def test_nobody_to_join_is_said_soon(tmp_path):
    began = time.monotonic()
    status, out, err = end(start(tmp_path, "--join", "127.0.0.1:1"))
    assert status == 1 and "127.0.0.1:1" in err and "Connection refused" in err, out + err
    assert time.monotonic() - began < 60
