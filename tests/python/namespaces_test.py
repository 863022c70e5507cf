"""Several hosts as network namespaces of this machine: ranks find each other over a veth pair, a cut link is noticed."""

import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import time

import pytest
from conftest import BUILD

ADDRESS = "10.214.0.1"


def ip(*words, check=True):
    return subprocess.run(["ip", *words], check=check, capture_output=True, text=True)


@pytest.fixture
def hosts():
    """Names of two namespaces that a link joins."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the program ip")
    names = [f"echelon-test-{os.getpid()}-{i}" for i in range(2)]
    mounted = os.path.ismount("/run/netns")
    try:
        try:
            for name in names:
                ip("netns", "add", name)
            ip("link", "add", "ech0", "netns", names[0], "type", "veth", "peer", "name", "ech0", "netns", names[1])
            for i, name in enumerate(names):  # in a chroot, for one, namespaces can be made but not entered
                ip("-n", name, "addr", "add", f"10.214.0.{i + 1}/24", "dev", "ech0")
                ip("-n", name, "link", "set", "ech0", "up")
                ip("-n", name, "link", "set", "lo", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces do not work here: {error.stderr.strip()}")
        yield names
    finally:
        for name in names:
            ip("netns", "delete", name, check=False)
        if not mounted:  # the first 'ip netns add' mounts it
            subprocess.run(["umount", "/run/netns"], capture_output=True)


def start(hosts, world, tmp_path, *arguments, command=("bench", "collectives")):
    """Ranks of a command, dealt out to the hosts in blocks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {**os.environ, "WORLD_SIZE": str(world), "MASTER_ADDR": ADDRESS, "MASTER_PORT": str(port),
              "LOCAL_WORLD_SIZE": str(world // 2), "ECHELON_TOKEN": secrets.token_hex(16), "ECHELON_CACHE": str(tmp_path)}
    return [subprocess.Popen(["ip", "netns", "exec", hosts[rank * 2 // world], BUILD / "echelon", *command,
                              *arguments],
                             cwd=tmp_path, env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank % (world // 2))},
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(world)]


@pytest.mark.parametrize("algorithm", ["auto", "ring", "hierarchical"])
def test_two_hosts_of_two_ranks_sum(hosts, tmp_path, algorithm):
    lines = tmp_path / "lines.jsonl"
    ranks = start(hosts, 4, tmp_path, "--sizes", "64,1Mi", "--seconds", "0.05", "--algorithm", algorithm, "--json", lines)
    results = [rank.communicate(timeout=60) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * 4, results
    assert "world 4 on 2 hosts" in results[0][0]  # and every rank has checked every sum, or ended with 1
    if algorithm != "auto":
        assert {json.loads(line)["algorithm"] for line in lines.read_text().splitlines()} == {algorithm}


def topo(hosts, folder, *arguments):
    """What rank 0 of 'echelon topo' says, and its JSON."""
    ranks = start(hosts, 2, folder, "--sizes", "64,256Ki", "--json", folder / "topo.json", *arguments, command=("topo",))
    results = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * 2, results
    return results[0][0] + results[0][1], json.loads((folder / "topo.json").read_text())


def throttle(hosts, rate):
    for host in hosts:
        subprocess.run(["ip", "netns", "exec", host, "tc", "qdisc", "replace", "dev", "ech0", "root", "tbf", "rate", rate,
                        "burst", "32kb", "latency", "500ms"], check=True)


def kept(folder):
    return sorted(folder.glob("links-*.json"))


def until_kept(folder, measure):
    """What is measured while this machine is busy is not kept: again, until it was steady."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        said = measure()
        if kept(folder):
            return said
    raise AssertionError(f"no measurement was steady: {said}")


def test_figures_of_a_link_that_changed_are_measured_again(hosts, tmp_path):
    """tbf changes neither names nor addresses nor the speed that the interface tells."""
    if shutil.which("tc") is None:
        pytest.skip("there is no tc")
    first = until_kept(tmp_path, lambda: topo(hosts, tmp_path)[0])
    assert "links, measured now" in first, first
    links = json.loads(kept(tmp_path)[0].read_text())
    assert "10.214.0.1 (ech0" in links["links"] and "10.214.0.2 (ech0" in links["links"], links
    links["measured"] -= 3 * 3600
    planted = links["tcp"]["beta"] = 1e-9  # of an idle machine, whatever this one was
    kept(tmp_path)[0].write_text(json.dumps(links))

    throttle(hosts, "20mbit")
    second, figures = topo(hosts, tmp_path)
    assert "not what they were when an earlier job measured them (3 hours ago)" in second, second
    assert "they are measured again" in second and "links, measured now" in second, second
    assert " MB/s" in second and "0.0 GB/s" not in second, second
    # 2.5 MB/s is 4e-7
    assert figures["figures"]["tcp"]["beta"] > 10 * planted, figures
    now = [one for one in figures["all_reduce"] if one["bytes"] == 256 << 10 and one["chosen"]]
    assert now and now[0]["predicted_us"] < 5 * now[0]["measured_us"] < 25 * now[0]["predicted_us"], now

    kept(tmp_path)[0].write_text(json.dumps(links)) if kept(tmp_path) else None
    flag, figures = topo(hosts, tmp_path, "--measure")
    assert "links, measured now" in flag and "ago" not in flag, flag
    assert figures["figures"]["tcp"]["beta"] > 10 * planted, figures


def test_a_job_that_finds_kept_figures_wrong_says_so_and_measures_again(hosts, tmp_path):
    """With comm.measure=always it does not look at them."""
    def job(*arguments):
        ranks = start(hosts, 2, tmp_path, "--sizes", "256Ki", "--seconds", "0.05", *arguments)
        results = [rank.communicate(timeout=120) for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0] * 2, results
        return results[0][0] + results[0][1]

    until_kept(tmp_path, job)
    file = kept(tmp_path)[0]
    figures = json.loads(file.read_text())
    figures["tcp"] = {"alpha": 1e-7, "beta": 1e-12}  # no link is so fast
    wrong = json.dumps(figures)
    file.write_text(wrong)
    said = job()
    assert "the links are not what they were when an earlier job measured them" in said, said
    assert not file.exists() or json.loads(file.read_text())["tcp"]["beta"] > 1e-12
    file.write_text(wrong)
    said = job("--set", "comm.measure=always")
    assert "not what they were" not in said, said
    assert not file.exists() or json.loads(file.read_text())["tcp"]["beta"] > 1e-12


def test_a_cut_link_ends_the_job_on_both_sides(hosts, tmp_path):
    ranks = start(hosts, 2, tmp_path, "--sizes", "1Mi", "--seconds", "30", "--set", "comm.timeout=3")
    time.sleep(3)
    assert all(rank.poll() is None for rank in ranks), [rank.communicate() for rank in ranks]
    ip("-n", hosts[0], "link", "set", "ech0", "down")
    began = time.monotonic()
    for rank, other in zip(ranks, (1, 0)):
        error = rank.communicate(timeout=30)[1]
        assert rank.returncode == 1, error
        assert f"rank {other} on" in error and ("deadline" in error or "lost" in error), error
    assert time.monotonic() - began < 25


def train(hosts, folder, adapt, after=None):
    """Losses of a job of two hosts x two ranks, and what its log says. Calls `after` when 12 steps are done."""
    settings = ["model.layers=2", "model.width=8", "model.heads=2", "model.vocab=32", "model.context=16", "train.steps=60", "train.batch=8",
                "train.precision=fp64", "train.validate_every=0", "train.threads=1", "data.source=random", "optim.warmup=5",
                "parallel.bucket_mib=0.01", f"sync.adapt={adapt}", "sync.every=4", "net.connections=1"]
    ranks = start(hosts, 4, folder, "--name", "job", *[word for one in settings for word in ("--set", one)],
                  command=("train",))
    metrics = folder / "runs/job/metrics.jsonl"
    end = time.monotonic() + 60
    while after and time.monotonic() < end:
        if metrics.exists() and len(metrics.read_text().splitlines()) >= 12:
            after()
            break
        time.sleep(0.005)
    results = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * 4, results
    losses = [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]
    return losses, (folder / "runs/job/rank0.log").read_text()


def test_a_job_changes_its_exchange_when_the_link_gets_slow(hosts, tmp_path):
    (tmp_path / "plain").mkdir()

    def slow():
        for host in hosts:
            subprocess.run(["ip", "netns", "exec", host, "tc", "qdisc", "add", "dev", "ech0", "root", "tbf", "rate", "4mbit",
                            "burst", "4kb", "latency", "500ms"], check=True)

    if shutil.which("tc") is None:
        pytest.skip("there is no tc")
    # On a link as fast as this one the algorithms are close, and a busy machine may measure that hierarchical is the
    # cheapest before the link is slow. Such a job has nothing to change to: another one is run.
    for attempt in range(3):
        folder = tmp_path / f"adapting{attempt}"
        folder.mkdir()
        losses, log = train(hosts, folder, "true", slow)
        for host in hosts:
            subprocess.run(["ip", "netns", "exec", host, "tc", "qdisc", "del", "dev", "ech0", "root"], check=True)
        began = re.search(r"reducing begins by (\w+)", log).group(1)
        moves = [(0, began)] + [(int(step), to) for step, to in re.findall(
            r"step (\d+): from \w+ to (\w+): reducing takes [\d.]+ ms and is predicted to take", log)]
        assert moves[-1][1] == "hierarchical", log
        if moves[-1][0] >= 12:
            break
    else:
        pytest.skip(f"three jobs had taken to hierarchical before the link got slow: {moves}")
    assert moves[-1][0] <= 36, moves
    assert re.search(r"with hierarchical reducing takes [\d.]+ ms", log), log
    plain, _ = train(hosts, tmp_path / "plain", "false")
    assert len(losses) == len(plain) == 60
    assert max(abs(a - b) for a, b in zip(losses, plain)) < 1e-10


def launch(hosts, host, node, port, token, folder, *words, nproc=2):
    """The ranks of one machine, started there by a launcher of its own."""
    return subprocess.Popen(["ip", "netns", "exec", hosts[host], BUILD / "echelon", "launch", "--nproc", str(nproc), "--nodes", "2",
                             "--node-rank", str(node), "--rendezvous", f"{ADDRESS}:{port}", "--", BUILD / "echelon", *words],
                            cwd=folder, env={**os.environ, "ECHELON_TOKEN": token, "ECHELON_CACHE": str(folder), "OMP_NUM_THREADS": "1"},
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def rank_of(launcher, rank):
    """The process of a rank: launcher, supervisor, rank."""
    def children(pid):
        return [int(child) for task in os.listdir(f"/proc/{pid}/task")
                for child in open(f"/proc/{pid}/task/{task}/children").read().split()]

    for supervisor in children(launcher.pid):
        for process in children(supervisor):
            if f"RANK={rank}" in open(f"/proc/{process}/environ").read().split("\0"):
                return process
    raise AssertionError(f"rank {rank} is not there")


def test_a_worker_that_dies_on_another_machine_ends_nobody_else(hosts, tmp_path):
    settings = ["model.layers=1", "model.width=32", "model.heads=2", "model.context=32", "train.batch=8", "train.validate_every=0",
                "train.threads=1", "data.source=random", "train.steps=600", "server.count=1", "server.mode=bounded",
                'chaos.slow=["3:3.0"]']
    words = ["train", "--name", "job", *[word for one in settings for word in ("--set", one)]]
    token = secrets.token_hex(16)
    launchers = [launch(hosts, node, node, 29431, token, tmp_path, *words) for node in range(2)]
    metrics, end = tmp_path / "runs/job/metrics.jsonl", time.monotonic() + 90
    while not metrics.exists() or len(metrics.read_text().splitlines()) < 20:
        assert time.monotonic() < end and all(one.poll() is None for one in launchers), [one.communicate() for one in launchers]
        time.sleep(0.02)
    victim = rank_of(launchers[1], 3)
    os.kill(victim, 9)
    said = [one.communicate(timeout=120) for one in launchers]
    assert [one.returncode for one in launchers] == [0, 0], said
    assert len(metrics.read_text().splitlines()) == 600
    assert f"rank 3 (pid {victim}) was killed by signal 9" in said[1][1], said
    assert "the others go on" in said[0][1], said


def test_rank_zero_on_a_machine_without_the_address_is_told_so(hosts, tmp_path):
    began = time.monotonic()
    job = launch(hosts, 1, 0, 29432, secrets.token_hex(16), tmp_path, "topo", "--sizes", "64", nproc=1)
    out, err = job.communicate(timeout=60)
    assert job.returncode == 2, out + err
    assert f"the rendezvous {ADDRESS}:29432 does not lead to" in err and "--node-rank 0" in err, err
    assert "10.214.0.2" in err, "the addresses that this machine has"
    assert time.monotonic() - began < 45, "it did not wait for the other ranks"


def test_two_machines_that_are_both_the_first_are_told_so(hosts, tmp_path):
    token = secrets.token_hex(16)
    first = launch(hosts, 0, 0, 29433, token, tmp_path, "topo", "--sizes", "64", nproc=1)
    end = time.monotonic() + 30
    while subprocess.run(["ip", "netns", "exec", hosts[0], "python3", "-c",
                          f"import socket; socket.create_connection(('{ADDRESS}', 29433), 1)"], capture_output=True).returncode:
        assert time.monotonic() < end and first.poll() is None, first.communicate()
    second = launch(hosts, 1, 0, 29433, token, tmp_path, "topo", "--sizes", "64", nproc=1)
    for job in (second, first):
        out, err = job.communicate(timeout=50)
        assert job.returncode == 2, out + err
        assert "two processes came as rank 0" in err and "node rank" in err, err
