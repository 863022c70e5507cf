"""The time until ranks are connected, their memory and connections then, and what 10,000 ranks would need.

    ./dev bench start_up                    1, 2, 4 … 64 ranks on this machine, in shared memory and over TCP
    ./dev bench start_up --base PROGRAM     compare with another echelon, by the time of `topo --mesh`
    ./dev bench start_up --save             also write docs/benchmarks/DATE-start-up.md

A rank is benchmarks/start_up.cpp, which loads neither torch nor a model. Its time is from the start of main() to the
end of Endpoint::join: the rendezvous, all control connections, the heaps of its host. A row has the median over rounds
of the slowest rank's time, and the largest memory of a rank. `topo --mesh` starts the whole program, torch included: launch,
join, one exchange, and goodbye. The last table is counted, with the code that a job runs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _page import BUILD, machine, plain, save

WORLDS = [1, 2, 4, 8, 16, 32, 64]
RANK = BUILD / "benchmarks" / "start_up"
LIMIT = 600


def join(world, kind):
    """One job: seconds of the slowest rank, KiB of the largest, most control connections and open files of a rank."""
    with tempfile.TemporaryDirectory() as folder:
        command = [BUILD / "echelon", "launch", "--nproc", str(world), "--", RANK, "join", folder, kind]
        result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
        if result.returncode:
            sys.exit(f"{' '.join(map(str, command))}\n{result.stdout}\n{result.stderr}")
        ranks = [json.loads(file.read_text()) for file in Path(folder).glob("*.json")]
    return [max(rank[what] for rank in ranks) for what in ("seconds", "rss_kib", "controls", "files")]


def topo(program, world):
    """Seconds of a job that connects and draws a mesh."""
    start = time.monotonic()
    command = [program, "topo", "--nproc", str(world), "--mesh", f"1x{world}x1"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT,
                            env=os.environ | {"OMP_NUM_THREADS": "1"})
    if result.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{result.stdout}\n{result.stderr}")
    return time.monotonic() - start


def counted(world, local):
    out = subprocess.run([RANK, "count", str(world), str(local)], check=True, capture_output=True, text=True).stdout
    return json.loads(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worlds", default=",".join(map(str, WORLDS)))
    parser.add_argument("--base", type=Path, help="an echelon to compare with")
    parser.add_argument("--save", action="store_true", help="write a dated page in docs/benchmarks/")
    arguments = parser.parse_args()
    worlds = [int(world) for world in arguments.worlds.split(",")]
    facts = machine()
    print("\n".join(f"{name:12} {value}" for name, value in facts), flush=True)
    tables = []

    def show(heading, rows):
        print(f"\n{heading}\n{plain(rows)}", flush=True)
        tables.append((heading, rows))

    for kind, words in (("shared", "one host, shared memory"), ("tcp", "every rank a host of its own, TCP")):
        rows = [["ranks", "ms to join", "MiB of a rank", "control connections", "open files"]]
        for world in worlds:
            runs = [join(world, kind) for _ in range(arguments.rounds)]
            seconds, kib, controls, files = zip(*runs)
            rows.append([str(world), f"{1e3 * statistics.median(seconds):.1f}", f"{max(kib) / 1024:.1f}",
                         str(max(controls)), str(max(files))])
        show(f"Endpoint::join, {words}", rows)

    programs = {"this": BUILD / "echelon"} | ({"base": arguments.base} if arguments.base else {})
    rows = [["ranks", *(f"s, {name}" for name in programs)]]
    for world in worlds:
        times = {name: [] for name in programs}
        for _ in range(arguments.rounds):
            for name, program in programs.items():
                times[name].append(topo(program, world))
        rows.append([str(world), *(f"{statistics.median(times[name]):.2f}" for name in programs)])
    show("echelon topo --mesh, start to end", rows)

    rows = [["ranks", "on a host", "pages to a rank", "KB of peer info", "KB in one frame", "fits 1 MiB",
             "MB by rank 0, to all", "MB by rank 0, tree", "hops", "connections, mesh", "connections, this"]]
    for world, local in ((64, 8), (1000, 8), (2000, 8), (4000, 8), (10000, 8), (10000, 64), (100000, 8)):
        one = counted(world, local)
        rows.append([str(world), str(local), str(one["pages"]), f"{one['bytes'] / 1e3:.0f}",
                     f"{one['bytes_in_one_frame'] / 1e3:.0f}", "yes" if one["fits_one_frame"] else "no",
                     f"{one['bytes'] * (world - 1) / 1e6:.1f}", f"{one['bytes_by_rank_0'] / 1e6:.1f}", str(one["hops"]),
                     str(one["controls_of_a_mesh"]), str(one["most_controls"])])
    show("By counting", rows)
    if arguments.save:
        save("start-up", "Start-up", facts, arguments.rounds, tables)


if __name__ == "__main__":
    main()
