"""Several hosts as network namespaces of this machine: ranks find each other over a veth pair, a cut link is noticed."""

import json
import os
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


def start(hosts, world, tmp_path, *arguments):
    """Ranks of `echelon bench collectives`, dealt out to the hosts in blocks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {**os.environ, "WORLD_SIZE": str(world), "MASTER_ADDR": ADDRESS, "MASTER_PORT": str(port),
              "LOCAL_WORLD_SIZE": str(world // 2), "ECHELON_TOKEN": secrets.token_hex(16), "ECHELON_CACHE": str(tmp_path)}
    return [subprocess.Popen(["ip", "netns", "exec", hosts[rank * 2 // world], BUILD / "echelon", "bench", "collectives",
                              *arguments],
                             env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank % (world // 2))},
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(world)]


@pytest.mark.parametrize("algorithm", ["auto", "ring", "hierarchical"])
def test_two_hosts_of_two_ranks_sum(hosts, tmp_path, algorithm):
    lines = tmp_path / "lines.jsonl"
    ranks = start(hosts, 4, tmp_path, "--sizes", "64,1Mi", "--seconds", "0.05", "--algorithm", algorithm, "--json", lines)
    results = [rank.communicate(timeout=60) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * 4, results
    assert "world 4 on 2 hosts" in results[0][0]
    if algorithm != "auto":
        assert {json.loads(line)["algorithm"] for line in lines.read_text().splitlines()} == {algorithm}


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
