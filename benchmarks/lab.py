"""The whole lab: accuracy, bytes and time of a step in each strategy, waiting by bucket size and bandwidth, and its duration.

    ./dev bench lab             echelon lab with its defaults, each round in a new folder
    ./dev bench lab --save      also write docs/benchmarks/DATE-lab.md

The lab has no peer: accuracies stand beside that of counting words, and waiting beside the prediction of the cost model.
Accuracies and bytes must be the same in every round, or the benchmark ends with an error. Times are medians of the rounds,
with the shortest and the longest. The sweep needs root and network namespaces; without them it is left out.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from _page import BUILD, machine, plain, save

STRATEGIES = {"data_parallel": "data parallel", "zero3": "ZeRO-3", "servers": "parameter servers"}
LIMIT = 1800


def run_lab():
    with tempfile.TemporaryDirectory() as work:
        command = [str(BUILD / "echelon"), "lab", "--json", "results.json"]
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=LIMIT)
        if done.returncode:
            sys.exit(f"the lab failed: {done.stderr}")
        return json.loads((Path(work) / "results.json").read_text())


def the_same(values, what):
    if len(set(values)) != 1:
        sys.exit(f"{what} differs between rounds: {values}")
    return values[0]


def spread(values, digits=2):
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def percent(share):
    return f"{100 * share:.2f} %"


def strategies(rounds):
    rows = [["", "accuracy", "of held-out sentences", "MiB sent in all", "ms a step"]]
    rows.append(["bag of words", percent(the_same([one["bag_of_words_accuracy"] for one in rounds], "the bag of words")),
                 percent(rounds[0]["bag_of_words_held_out_accuracy"]), "", ""])
    for key, title in STRATEGIES.items():
        each = [one["strategies"][key] for one in rounds]
        rows.append([title, percent(the_same([one["accuracy"] for one in each], f"the accuracy of {key}")),
                     percent(the_same([one["held_out_accuracy"] for one in each], f"the held-out accuracy of {key}")),
                     f"{the_same([one['bytes'] for one in each], f'what {key} sends') / 2**20:,.1f}",
                     spread([one["step_ms"] for one in each])])
    return rows


def sweep(rounds):
    rows = [["Mbit/s", "bucket, MiB", "buckets", "waited, predicted (ms)", "waited, measured (ms)", "computing (ms)"]]
    for points in zip(*(one["sweep"] for one in rounds)):
        rows.append([f"{points[0]['megabits']:.0f}", f"{points[0]['bucket_mib']:g}", f"{points[0]['buckets']}",
                     *(spread([one[key] for one in points], 1) for key in ("predicted_ms", "waited_ms", "compute_ms"))])
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="write a dated page in docs/benchmarks/")
    arguments = parser.parse_args()
    facts = machine()
    print("\n".join(f"{name:12} {value}" for name, value in facts), flush=True)
    rounds = []
    for number in range(arguments.rounds):
        rounds.append(run_lab())
        print(f"round {number + 1}/{arguments.rounds}: {rounds[-1]['seconds']:.0f} s", file=sys.stderr, flush=True)
    tables = [("Strategies", strategies(rounds))]
    if rounds[0]["sweep"]:
        tables.append(("Bucket size and bandwidth", sweep(rounds)))
    tables.append(("Duration", f"The whole lab took {spread([one['seconds'] for one in rounds], 0)} s."))
    for heading, rows in tables:
        print(f"\n{heading}\n{rows if isinstance(rows, str) else plain(rows)}")
    if arguments.save:
        save("lab", "The lab", facts, arguments.rounds, tables)


if __name__ == "__main__":
    main()
