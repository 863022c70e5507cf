"""Ctrl-C, SIGTERM and SIGHUP: whoever gets them, a job ends in order with its state saved, and says just that."""

import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import time

import pytest
from conftest import ENVIRONMENT, rank_process

HOWS = ["train --nproc", "launch"]
SERVERS = {f"{mode}, {place}": dict(server_count=1, server_mode=mode, server_place=place, train_batch=8)
           for mode in ("sync", "bounded") for place in ("colocated", "separate")}


def command(echelon, how, *arguments, ranks=2, **settings):
    """A job that goes on until it is interrupted; its run is runs/job."""
    train = echelon.train_arguments("--name", "job", *arguments, **{"train_steps": 1000000, **settings})
    if how == "launch":
        return ["launch", "--nproc", ranks, "--", echelon.program, *train]
    return train + (["--nproc", ranks] if how == "train --nproc" else [])


def wait_for_steps(job, folder, steps=5):
    path, end = folder / "runs/job/metrics.jsonl", time.monotonic() + 90
    while not path.exists() or path.read_bytes().count(b"\n") < steps:
        assert job.poll() is None, job.communicate()
        assert time.monotonic() < end, "no steps came"
        time.sleep(0.02)


def wait_until_it_computes(job, folder):
    """The first step is under way, a moment after the log begins."""
    log, end = folder / "runs/job/rank0.log", time.monotonic() + 90
    while not log.exists() or ", step 0 of " not in log.read_text():
        assert job.poll() is None and time.monotonic() < end, job.communicate()
        time.sleep(0.02)
    time.sleep(1)


def saved_step(folder):
    data = (folder / "runs/job/state.safetensors").read_bytes()
    return int(json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])["__metadata__"]["step"])


def descendants(pid):
    found = [pid]
    for one in found:
        for task in os.listdir(f"/proc/{one}/task") if os.path.exists(f"/proc/{one}") else []:
            found += map(int, open(f"/proc/{one}/task/{task}/children").read().split())
    return found


def expect_saved(job, folder):
    out, err = job.communicate(timeout=90)
    assert job.returncode == 130, out + err
    said = re.search(r"interrupted after step (\d+); go on with: ", out)
    assert said, out + err
    assert saved_step(folder) == int(said[1])
    assert err == "", "it was interrupted, and nothing failed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("how", ["train", *HOWS])
def test_a_signal_to_the_first_process_ends_the_job_in_order(echelon, how, number):
    job = echelon.start(*command(echelon, how))
    wait_for_steps(job, echelon.folder)
    job.send_signal(number)
    expect_saved(job, echelon.folder)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("how", HOWS)
def test_a_signal_to_one_rank_ends_the_job_in_order(echelon, how, rank):
    job = echelon.start(*command(echelon, how))
    wait_for_steps(job, echelon.folder)
    os.kill(rank_process(job, rank), signal.SIGTERM)
    expect_saved(job, echelon.folder)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("servers", SERVERS)
@pytest.mark.parametrize("whom", ["the launcher", 0, 1, 2])
def test_a_signal_ends_a_job_of_parameter_servers_in_order(echelon, how, servers, whom):
    """Rank 2 only serves where servers are separate."""
    job = echelon.start(*command(echelon, how, ranks=3, **SERVERS[servers]))
    wait_for_steps(job, echelon.folder)
    os.kill(job.pid if whom == "the launcher" else rank_process(job, whom), signal.SIGTERM)
    expect_saved(job, echelon.folder)


@pytest.mark.parametrize("place", ["colocated", "separate"])
def test_a_signal_to_the_second_server_ends_the_job_in_order(echelon, place):
    job = echelon.start(*command(echelon, "train --nproc", ranks=4, server_count=2, server_mode="bounded",
                                 server_place=place, train_batch=8))
    wait_for_steps(job, echelon.folder)
    os.kill(rank_process(job, 1 if place == "colocated" else 3), signal.SIGTERM)
    expect_saved(job, echelon.folder)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("servers", ["none", *SERVERS])
def test_a_scheduler_that_signals_every_process_ends_the_job_in_order(echelon, how, servers):
    job = echelon.start(*command(echelon, how, ranks=3, **SERVERS.get(servers, dict(train_batch=6))))
    wait_for_steps(job, echelon.folder)
    for pid in descendants(job.pid):
        os.kill(pid, signal.SIGTERM)
    expect_saved(job, echelon.folder)


@pytest.mark.parametrize("how", HOWS)
def test_ctrl_c_reaches_a_process_group(echelon, how):
    job = echelon.start(*command(echelon, how), start_new_session=True)
    wait_for_steps(job, echelon.folder)
    os.killpg(job.pid, signal.SIGINT)
    expect_saved(job, echelon.folder)


@pytest.mark.parametrize("how", ["train", "train --nproc"])
def test_a_ctrl_c_that_comes_twice_at_once_is_one(echelon, how):
    job = echelon.start(*command(echelon, how))
    wait_for_steps(job, echelon.folder)
    job.send_signal(signal.SIGINT)
    time.sleep(0.003)
    job.send_signal(signal.SIGINT)
    expect_saved(job, echelon.folder)


@pytest.mark.parametrize("how", ["train", "train --nproc"])
def test_a_second_ctrl_c_ends_it_at_once(echelon, how):
    slow = dict(train_steps=10, chaos_slow='["0:1000"]', train_batch=512, model_width=64)  # a step takes minutes
    job = echelon.start(*command(echelon, how, **slow))
    wait_until_it_computes(job, echelon.folder)
    job.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert job.poll() is None, "the first one waits for the step"
    job.send_signal(signal.SIGINT)
    out, err = job.communicate(timeout=30)
    assert job.returncode == 130, out + err
    assert not (echelon.folder / "runs/job/metrics.jsonl").exists(), "the step was not over"


def test_a_hangup_that_is_ignored_stays_so(echelon):
    job = echelon.start(*command(echelon, "train"), preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    wait_for_steps(job, echelon.folder)
    job.send_signal(signal.SIGHUP)
    wait_for_steps(job, echelon.folder, (echelon.folder / "runs/job/metrics.jsonl").read_bytes().count(b"\n") + 20)
    job.send_signal(signal.SIGTERM)
    expect_saved(job, echelon.folder)


@pytest.mark.parametrize("how", ["train", *HOWS])
def test_a_terminal_that_is_closed_ends_the_job_with_its_state_saved(echelon, how):
    pid, terminal = pty.fork()  # a session of its own, whose terminal this is
    if pid == 0:
        os.chdir(echelon.folder)
        words = [str(word) for word in [echelon.program, *command(echelon, how)]]
        os.execve(words[0], words, ENVIRONMENT)
    path, end = echelon.folder / "runs/job/metrics.jsonl", time.monotonic() + 90
    os.set_blocking(terminal, False)
    while not path.exists() or path.read_bytes().count(b"\n") < 5:
        assert time.monotonic() < end, "no steps came"
        time.sleep(0.02)
        try:
            os.read(terminal, 1 << 16)  # a terminal that nobody reads would hold the job
        except BlockingIOError:
            pass
    os.close(terminal)
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        assert time.monotonic() < end, "it goes on"
        time.sleep(0.02)
    steps = path.read_bytes().count(b"\n")
    assert saved_step(echelon.folder) == steps


def by_hand(echelon, rank, world, port, *arguments, **variables):
    environment = {**ENVIRONMENT, "RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(port), "ECHELON_TOKEN": "a token for tests of interrupts", **variables}
    return subprocess.Popen([str(echelon.program), *map(str, arguments)], cwd=echelon.folder, env=environment, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # conftest.py ends it with its test


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until_it_listens(job, port):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        assert job.poll() is None, job.communicate()
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("nobody listens")


def open_files(pid):
    """What a process has open, as far as it can still be looked at: paths, and sockets by number."""
    found = []
    try:
        for entry in os.listdir(f"/proc/{pid}/fd"):
            found.append(os.readlink(f"/proc/{pid}/fd/{entry}"))
    except OSError:  # it was closed just now
        pass
    return found


def established(job):
    """The (local, remote) ports of the process's TCP connections."""
    sockets = open_files(job.pid)
    rows = [line.split() for line in open(f"/proc/{job.pid}/net/tcp").read().splitlines()[1:]]
    return {(int(row[1].split(":")[1], 16), int(row[2].split(":")[1], 16))
            for row in rows if row[3] == "01" and f"socket:[{row[9]}]" in sockets}


def wait_until_they_are_connected(second, first, port):
    """The connection is proven and kept by both: for longer than a handshake takes."""
    end, since = time.monotonic() + 60, None
    while since is None or time.monotonic() - since < 1:
        assert time.monotonic() < end and first.poll() is None and second.poll() is None, "they did not meet"
        joined = {(b, a) for a, b in established(second) if b == port} & established(first)
        since = (since or time.monotonic()) if joined else None
        time.sleep(0.02)


@pytest.mark.parametrize("how", ["train", *HOWS])
def test_a_signal_while_data_are_read_ends_the_job_at_once(echelon, how):
    text = echelon.folder / "large.txt"
    text.touch()
    os.truncate(text, 400 << 30)  # sparse: reading it takes minutes
    job = echelon.start(*command(echelon, how, data_source="large.txt"))
    end = time.monotonic() + 60
    while not any(str(text) in open_files(pid) for pid in descendants(job.pid)):
        assert job.poll() is None and time.monotonic() < end, job.communicate()
        time.sleep(0.02)
    time.sleep(0.5)
    job.send_signal(signal.SIGTERM)
    out, err = job.communicate(timeout=20)
    assert job.returncode == 130 and "echelon: error" not in err, out + err
    assert not (echelon.folder / "runs").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_rank_that_waits_for_the_others_ends_at_once(echelon, number):
    port = free_port()
    job = by_hand(echelon, 0, 2, port, *echelon.train_arguments())
    wait_until_it_listens(job, port)
    job.send_signal(number)
    out, err = job.communicate(timeout=20)  # the others may take a minute to come
    assert job.returncode == 130 and err.endswith("echelon: interrupted\n"), out + err


def test_a_rank_that_ends_while_the_ranks_meet_is_named_at_once(echelon):
    port = free_port()
    first = by_hand(echelon, 0, 3, port, *echelon.train_arguments())
    wait_until_it_listens(first, port)
    second = by_hand(echelon, 1, 3, port, *echelon.train_arguments())
    wait_until_they_are_connected(second, first, port)
    second.send_signal(signal.SIGKILL)
    second.wait()
    out, err = first.communicate(timeout=30)
    assert first.returncode == 69, out + err
    assert re.search(rf"rank 1 \(pid {second.pid} on \S+\) ended while the ranks were meeting", err), err


@pytest.mark.parametrize("how", HOWS)
def test_a_worker_that_dies_before_the_job_has_begun_ends_it_at_once(echelon, how):
    servers = dict(server_count=1, server_mode="bounded", train_batch=8)
    job = echelon.start(*command(echelon, how, ranks=3, **servers))
    end = time.monotonic() + 30
    while True:
        try:
            victim = rank_process(job, 2)
            break
        except AssertionError:
            assert time.monotonic() < end
    os.kill(victim, signal.SIGKILL)
    out, err = job.communicate(timeout=40)
    assert job.returncode == 137, out + err
    assert re.search(r"rank 2 \(pid \d+\) was killed by signal 9", err.splitlines()[-1]), err


# ---- Ranks that are stopped


def last_line(err):
    return err.splitlines()[-1]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("servers,victim", [("sync, colocated", 0), ("sync, colocated", 1), ("sync, separate", 2),
                                            ("bounded, colocated", 0), ("bounded, separate", 0), ("bounded, separate", 2)])
def test_a_stopped_rank_that_servers_cannot_do_without_ends_the_job_and_is_named(echelon, how, servers, victim):
    job = echelon.start(*command(echelon, how, ranks=3, comm_timeout=4, server_patience=3, **SERVERS[servers]))
    wait_for_steps(job, echelon.folder)
    pid = rank_process(job, victim)
    for _ in range(8):  # one that has no share at the moment is not missed: the others go on
        os.kill(pid, signal.SIGSTOP)
        end = time.monotonic() + 15
        while job.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        if job.poll() is not None:
            break
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.2)
    out, err = job.communicate(timeout=60)
    assert job.returncode != 0, out + err
    assert re.match(rf"echelon: error: rank {victim} \(pid {pid}\) is stopped ", last_line(err)), err


@pytest.mark.parametrize("how", HOWS)
def test_a_stopped_worker_does_not_hold_up_the_end_of_a_bounded_job(echelon, how):
    job = echelon.start(*command(echelon, how, ranks=3, comm_timeout=4, server_patience=2, train_steps=300,
                                 chaos_slow='["0:3", "1:3", "2:3"]', **SERVERS["bounded, colocated"]))
    wait_for_steps(job, echelon.folder)
    pid = rank_process(job, 2)
    os.kill(pid, signal.SIGSTOP)
    out, err = job.communicate(timeout=60)
    assert job.returncode == 0, out + err
    assert (echelon.folder / "runs/job/metrics.jsonl").read_bytes().count(b"\n") == 300
    assert re.search(rf"rank 2 \(pid {pid}\) is stopped .*; the job has ended without it, and it was killed", err), err


@pytest.mark.parametrize("how", HOWS)
def test_a_stopped_rank_wakes_up_to_end_in_order(echelon, how):
    job = echelon.start(*command(echelon, how))
    wait_for_steps(job, echelon.folder)
    os.kill(rank_process(job, 1), signal.SIGSTOP)
    job.send_signal(signal.SIGTERM)
    expect_saved(job, echelon.folder)
