"""The time of an fp32 all-reduce: Echelon, Gloo and Open MPI, in alternating rounds of one run.

    ./dev bench collectives                       ranks on this host: private and registered buffers, worlds 2 and 4
    ./dev bench collectives --scene tcp           Echelon and Gloo over TCP on the loopback
    ./dev bench collectives --scene namespaces    the same between two network namespaces (root)
    ./dev bench collectives --scene throttled     2 namespaces x 2 ranks, 1 Gbit/s between them: hierarchical, ring
    ./dev bench collectives --scene ddp           a PyTorch DDP step over "echelon" and over "gloo"
    ./dev bench collectives --save                also write docs/benchmarks/DATE-collectives-SCENE.md

Every repetition begins at a barrier; its time is that of rank 0. Every measurement has its own process group. A time is the
median over repetitions, then over rounds. A ratio is the median over rounds of the ratio to the faster of the other systems.
If there are enough cores, ranks are bound to one each, on every side (Open MPI's default).
"""

import argparse
import json
import os
import secrets
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _page import BUILD, ROOT, machine, plain, save

SIZES = [64, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20]
LIMIT = 600  # seconds that one measurement may take


def human(size):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size} {unit}"
        size //= 1024
    return f"{size} TiB"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def rank_environment(rank, world, address, port, **more):
    return os.environ | {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": address, "MASTER_PORT": str(port),
                         "OMP_NUM_THREADS": "1"} | more


def run_ranks(commands):
    """Runs (command, environment, prefix) of all ranks; returns the output of rank 0."""
    ranks = [subprocess.Popen([*prefix, *map(str, command)], env=environment, stdout=subprocess.PIPE, text=True)
             for command, environment, prefix in commands]
    try:
        out = ranks[0].communicate(timeout=LIMIT)[0]
        for rank in ranks[1:]:
            rank.communicate(timeout=30)
    finally:
        for rank in ranks:
            rank.kill()
    if any(rank.returncode for rank in ranks):
        sys.exit(f"a rank failed: {commands[0][0]}")
    return out


# ---- The sides -----------------------------------------------------------------------------------------


def pinned(rank, world):
    """Open MPI binds ranks to cores when there are enough; so do we for the others."""
    cores = sorted(os.sched_getaffinity(0))
    return ["taskset", "-c", str(cores[rank])] if world <= len(cores) and shutil.which("taskset") else []


def gloo_rank(seconds, sizes):
    """One rank of the Gloo side: prints a JSON object of size -> median microseconds."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    results = {}
    for size in sizes:
        values = torch.zeros(size // 4)

        def timed():
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(values)
            return time.perf_counter() - start

        for _ in range(3):
            first = timed()
        repeats = torch.tensor([min(2000, max(10, int(seconds / max(first, 1e-6))))])
        dist.broadcast(repeats, 0)
        results[size] = statistics.median(timed() for _ in range(int(repeats))) * 1e6
    if dist.get_rank() == 0:
        print(json.dumps(results))
    dist.destroy_process_group()


def gloo(world, sizes, seconds, places):
    port = free_port()
    command = [sys.executable, __file__, "--gloo-rank", json.dumps([seconds, sizes])]
    out = run_ranks([(command, rank_environment(r, world, places.address, port, **places.gloo(r)),
                      [*places.prefix(r), *pinned(r, world)]) for r in range(world)])
    return {int(size): value for size, value in json.loads(out).items()}


def open_mpi(world, sizes, seconds):
    program = BUILD / "benchmarks" / "open_mpi_all_reduce"
    source = ROOT / "benchmarks" / "open_mpi_all_reduce.cpp"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        program.parent.mkdir(exist_ok=True)
        subprocess.run(["mpicxx", "-std=c++20", "-O2", str(source), "-o", str(program)], check=True)
    command = ["mpirun", "--oversubscribe", "-np", str(world), str(program), str(seconds), *map(str, sizes)]
    if os.geteuid() == 0:
        command.insert(1, "--allow-run-as-root")
    out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=LIMIT).stdout
    return {int(line.split()[0]): float(line.split()[1]) for line in out.splitlines()}


def echelon(world, sizes, seconds, places, buffers="private", algorithm="auto", options=()):
    token, port = secrets.token_hex(16), free_port()
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "lines.jsonl"
        command = [BUILD / "echelon", "bench", "collectives", "--world", world, "--sizes", ",".join(map(str, sizes)),
                   "--buffers", buffers, "--algorithm", algorithm, "--seconds", seconds, "--json", lines]
        for option in options:
            command += ["--set", option]
        run_ranks([(command, rank_environment(r, world, places.address, port, ECHELON_TOKEN=token,
                                              LOCAL_RANK=str(r), LOCAL_WORLD_SIZE=str(world), ECHELON_CACHE=folder),
                    [*places.prefix(r), *pinned(r, world)]) for r in range(world)])
        results = [json.loads(line) for line in lines.read_text().splitlines()]
    return {r["bytes"]: r for r in results}


# ---- Where ranks run -----------------------------------------------------------------------------------


class Here:
    address = "127.0.0.1"

    def prefix(self, rank):
        return []

    def gloo(self, rank):
        return {"GLOO_SOCKET_IFNAME": "lo"}


class Namespaces:
    """Two network namespaces joined by a veth pair; ranks are assigned to them in blocks."""

    address = "10.213.0.1"

    def __init__(self, world, rate=None):
        self.world, self.names = world, [f"echelon-{os.getpid()}-{i}" for i in range(2)]
        self.rate = rate

    def __enter__(self):
        def ip(*words):
            subprocess.run(["ip", *words], check=True)

        for name in self.names:
            ip("netns", "add", name)
        ip("link", "add", "ech0", "netns", self.names[0], "type", "veth", "peer", "name", "ech0", "netns", self.names[1])
        for i, name in enumerate(self.names):
            ip("-n", name, "addr", "add", f"10.213.0.{i + 1}/24", "dev", "ech0")
            ip("-n", name, "link", "set", "ech0", "up")
            ip("-n", name, "link", "set", "lo", "up")
            if self.rate:
                subprocess.run(["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "ech0", "root", "tbf", "rate",
                                self.rate, "burst", "256kb", "latency", "50ms"], check=True)
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name])

    def prefix(self, rank):
        return ["ip", "netns", "exec", self.names[rank * 2 // self.world]]

    def gloo(self, rank):
        return {"GLOO_SOCKET_IFNAME": "ech0"}


# ---- Scenes --------------------------------------------------------------------------------------------


def median_of(rounds, get):
    return statistics.median(get(r) for r in rounds)


def compare(rounds, sizes, ours, peers):
    """Rows of medians, and of ratios per round to the faster of the other systems."""
    rows = [["", *map(human, sizes)]]
    for name in [*peers, *ours]:
        rows.append([f"{name}, us", *(f"{median_of(rounds, lambda r: r[name][s]):.2f}" for s in sizes)])
    for name in ours:
        rows.append([f"{name}: times as fast",
                     *(f"{median_of(rounds, lambda r: min(r[p][s] for p in peers) / r[name][s]):.2f}" for s in sizes)])
    return rows


def times(results):
    return {size: result["median_us"] for size, result in results.items()}


def shared_scene(arguments):
    for world in arguments.world or [2, 4]:
        rounds = []
        for i in range(arguments.rounds):
            one = {}
            sides = [("Gloo", lambda: gloo(world, arguments.sizes, arguments.seconds, Here())),
                     ("Open MPI", lambda: open_mpi(world, arguments.sizes, arguments.seconds)),
                     ("Echelon, private", lambda: echelon(world, arguments.sizes, arguments.seconds, Here())),
                     ("Echelon, registered",
                      lambda: echelon(world, arguments.sizes, arguments.seconds, Here(), "registered"))]
            for name, run in sides if i % 2 == 0 else reversed(sides):
                result = run()
                if name.startswith("Echelon"):
                    one["floor"] = {size: value["floor_us"] for size, value in result.items()}
                    result = times(result)
                one[name] = result
            rounds.append(one)
        rows = compare(rounds, arguments.sizes, ["Echelon, private", "Echelon, registered"], ["Gloo", "Open MPI"])
        rows.append(["memory floor, us", *(f"{median_of(rounds, lambda r: r['floor'][s]):.2f}" for s in arguments.sizes)])
        rows.append(["registered: lost against the floor, us",
                     *(f"{median_of(rounds, lambda r: r['Echelon, registered'][s] - r['floor'][s]):.2f}" for s in arguments.sizes)])
        yield f"{world} ranks on one host", rows


def tcp_rounds(arguments, world, places, options):
    rounds = []
    for i in range(arguments.rounds):
        sides = [("Gloo", lambda: gloo(world, arguments.sizes, arguments.seconds, places)),
                 ("Echelon", lambda: times(echelon(world, arguments.sizes, arguments.seconds, places, options=options)))]
        rounds.append({name: run() for name, run in (sides if i % 2 == 0 else reversed(sides))})
    return compare(rounds, arguments.sizes, ["Echelon"], ["Gloo"])


def tcp_scene(arguments):
    for world in arguments.world or [2, 4]:
        yield f"{world} ranks over TCP on the loopback", tcp_rounds(arguments, world, Here(), ["net.shared_memory=false"])


def namespaces_scene(arguments):
    for world in arguments.world or [2]:
        with Namespaces(world) as places:
            yield f"{world} ranks in two network namespaces", tcp_rounds(arguments, world, places, ["net.shared_memory=false"])


def throttled_scene(arguments):
    sizes = [s for s in arguments.sizes if s >= 1 << 20]
    with Namespaces(4, "1gbit") as places:
        rounds = []
        for i in range(arguments.rounds):
            sides = ["hierarchical", "ring"] if i % 2 == 0 else ["ring", "hierarchical"]
            rounds.append({a: times(echelon(4, sizes, arguments.seconds, places, algorithm=a)) for a in sides})
    rows = [["", *map(human, sizes)]]
    for name in ("ring", "hierarchical"):
        rows.append([f"{name}, us", *(f"{median_of(rounds, lambda r: r[name][s]):.0f}" for s in sizes)])
    rows.append(["hierarchical: times as fast",
                 *(f"{median_of(rounds, lambda r: r['ring'][s] / r['hierarchical'][s]):.2f}" for s in sizes)])
    yield "2 namespaces x 2 ranks, 1 Gbit/s between them", rows


def ddp_rank(backend, steps):
    """One rank of a DDP job: prints the median milliseconds of a step."""
    import torch
    import torch.distributed as dist
    from torch import nn

    if backend == "echelon":
        sys.path.insert(0, str(BUILD / "python"))
        import echelon  # noqa: F401  registers the backend
    torch.set_num_threads(1)
    dist.init_process_group(backend)
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(1024, 1024), nn.ReLU())))
    ddp = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
    data = torch.randn(16, 1024)
    durations = []
    for _ in range(steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        ddp(data).square().mean().backward()
        optimizer.step()
        durations.append(time.perf_counter() - start)
    if dist.get_rank() == 0:
        print(json.dumps(statistics.median(durations[3:]) * 1e3))
    dist.destroy_process_group()


def ddp_scene(arguments):
    rows = [["", "gloo, ms a step", "echelon, ms a step", "times as fast"]]
    for world in arguments.world or [2, 4]:
        rounds = []
        for i in range(arguments.rounds):
            one = {}
            for backend in ("gloo", "echelon") if i % 2 == 0 else ("echelon", "gloo"):
                command = [sys.executable, __file__, "--ddp-rank", json.dumps([backend, 40])]
                port = free_port()
                one[backend] = float(run_ranks([(command, rank_environment(r, world, "127.0.0.1", port), pinned(r, world))
                                                for r in range(world)]))
            rounds.append(one)
        rows.append([f"{world} ranks, 4 layers of 1024 x 1024", *(f"{median_of(rounds, lambda r: r[b]):.2f}" for b in ("gloo", "echelon")),
                     f"{median_of(rounds, lambda r: r['gloo'] / r['echelon']):.2f}"])
    yield "DistributedDataParallel", rows


SCENES = {"shared": shared_scene, "tcp": tcp_scene, "namespaces": namespaces_scene, "throttled": throttled_scene,
          "ddp": ddp_scene}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scene", choices=SCENES, default="shared")
    parser.add_argument("--world", type=int, action="append", help="ranks; may be given several times")
    parser.add_argument("--sizes", type=lambda text: [int(s) for s in text.split(",")], default=SIZES, help="in bytes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each size of a round")
    parser.add_argument("--save", action="store_true", help="write a dated page in docs/benchmarks/")
    parser.add_argument("--gloo-rank", help=argparse.SUPPRESS)
    parser.add_argument("--ddp-rank", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.gloo_rank:
        return gloo_rank(*json.loads(arguments.gloo_rank))
    if arguments.ddp_rank:
        return ddp_rank(*json.loads(arguments.ddp_rank))

    facts = machine()
    print("\n".join(f"{name:12} {value}" for name, value in facts), flush=True)
    tables = []
    for title, rows in SCENES[arguments.scene](arguments):
        print(f"\n{title}\n{plain(rows)}", flush=True)
        tables.append((title, rows))
    if arguments.save:
        save(f"collectives-{arguments.scene}", f"All-reduce of fp32, {arguments.scene}", facts, arguments.rounds, tables)


if __name__ == "__main__":
    main()
