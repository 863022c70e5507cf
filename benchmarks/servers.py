"""The time in which workers sum a vector through parameter servers, with a slow link per rank.

    ./dev bench servers                4 workers with 0, 2 and 4 extra servers, in network namespaces at 200 Mbit/s (root)
    ./dev bench servers --save         also write docs/benchmarks/DATE-servers.md

The vector is split so that all links are equally busy (BytePS, Jiang et al. 2020): with n workers and k extra servers every
link carries 2n(n-1)/(n^2 + kn - 2k) vectors each way, so the times with 0, 2 and 4 extra servers should be 1.5 : 1.2 : 1.0.
The numbers of extra servers alternate in rounds; a time is the median over rounds of each round's median.
"""

import argparse
import json
import os
import secrets
import statistics
import subprocess
import tempfile
from pathlib import Path

from _page import BUILD, machine, plain, save
from collectives import free_port, rank_environment, run_ranks


class Star:
    """Network namespaces around a bridge, each with a link of the given Mbit/s, both ways."""

    def __init__(self, count, rate):
        self.names = [f"echelon-{os.getpid()}-{i}" for i in range(count)]
        self.bridge, self.rate = f"ech{os.getpid() % 100000}", rate

    def ip(self, *words):
        subprocess.run(["ip", *words], check=True)

    def slow(self, prefix, device):
        """A traffic shaper whose queue is long enough to drop nothing."""
        tc = [*prefix, "tc", "qdisc", "add", "dev", device]
        subprocess.run([*tc, "root", "handle", "1:", "tbf", "rate", f"{self.rate}mbit", "burst", "256kb", "latency", "200ms"],
                       check=True)
        subprocess.run([*tc, "parent", "1:", "pfifo", "limit", "1000"], check=True)

    def __enter__(self):
        try:
            self.build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def build(self):
        self.ip("link", "add", self.bridge, "type", "bridge")
        self.ip("link", "set", self.bridge, "up")
        for i, name in enumerate(self.names):
            outside = f"{self.bridge}-{i}"
            self.ip("netns", "add", name)
            self.ip("link", "add", outside, "type", "veth", "peer", "name", "ech0", "netns", name)
            self.ip("link", "set", outside, "master", self.bridge, "up")
            self.ip("-n", name, "addr", "add", f"10.214.0.{i + 1}/24", "dev", "ech0")
            self.ip("-n", name, "link", "set", "ech0", "up")
            self.ip("-n", name, "link", "set", "lo", "up")
            # BBR, where it is the default, leaves a quarter of a shaped link unused; Reno is in every kernel.
            subprocess.run(["ip", "netns", "exec", name, "sysctl", "-qw", "net.ipv4.tcp_congestion_control=reno"], check=True)
            self.slow([], outside)
            self.slow(["ip", "netns", "exec", name], "ech0")

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL)
        subprocess.run(["ip", "link", "delete", self.bridge], stderr=subprocess.DEVNULL)


def measure(star, workers, extra, mib, repeat):
    world, port = workers + extra, free_port()
    token = secrets.token_hex(16)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        command = [BUILD / "echelon", "bench", "servers", "--workers", workers, "--extra", extra, "--mib", mib,
                   "--repeat", repeat, "--json", out, "--set", "net.shared_memory=false",
                   "--set", "net.connections=1"]
        run_ranks([(command, rank_environment(rank, world, "10.214.0.1", port, ECHELON_TOKEN=token, ECHELON_CACHE=folder),
                    ["ip", "netns", "exec", star.names[rank]]) for rank in range(world)])
        return json.loads(out.read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--extra", type=lambda text: [int(k) for k in text.split(",")], default=[0, 2, 4])
    parser.add_argument("--mib", type=float, default=32)
    parser.add_argument("--rate", type=int, default=200, help="Mbit/s of a link")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--save", action="store_true", help="write a dated page in docs/benchmarks/")
    arguments = parser.parse_args()
    facts = machine()
    print("\n".join(f"{name:12} {value}" for name, value in facts), flush=True)
    results = {k: [] for k in arguments.extra}
    with Star(arguments.workers + max(arguments.extra), arguments.rate) as star:
        for _ in range(arguments.rounds):
            for k in arguments.extra:
                results[k].append(measure(star, arguments.workers, k, arguments.mib, arguments.repeat))
    times = {k: statistics.median(r["median_ms"] for r in results[k]) for k in results}
    last = arguments.extra[-1]
    rows = [["extra servers", "ms", "law: vectors a link", "measured, last = law", "off by", "of the link's rate"]]
    for k, ms in times.items():
        law = results[k][0]["law"]
        seen = ms / times[last] * results[last][0]["law"]
        rate = law * results[k][0]["bytes"] * 8 / (ms * 1e3) / arguments.rate
        rows.append([str(k), f"{ms:.0f}", f"{law:.2f}", f"{seen:.2f}", f"{(seen / law - 1) * 100:+.0f} %", f"{rate:.2f}"])
    title = f"{arguments.workers} workers, {arguments.mib:g} MiB of fp32, links of {arguments.rate} Mbit/s"
    print(f"\n{title}\n{plain(rows)}")
    if arguments.save:
        save("servers", "Summing through parameter servers", facts, arguments.rounds, [(title, rows)])


if __name__ == "__main__":
    main()
