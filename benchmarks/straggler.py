"""Four workers, one of them three times slower: the time to the same loss for each way to synchronise.

    ./dev bench straggler              even shares, shares by speed, bounded staleness, asynchronous
    ./dev bench straggler --save       also write docs/benchmarks/DATE-straggler.md

Every run trains the same model on the same samples at a constant rate. The target is the final loss of the synchronous run
with even shares (mean of the last tenth of its steps). The time of a run is the sum of its step times until its loss, averaged
over as many steps, is first within 0.2 % of the target. The other runs may take half as many steps more. Runs alternate in
rounds; a time is the median over rounds.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from _page import BUILD, machine, plain, save

WAYS = {"synchronous, even shares": [],
        "synchronous, shares by speed": ["parallel.shares=speed", "parallel.shares_every=10"],
        "bounded, staleness 3": ["server.count=1", "server.mode=bounded", "server.staleness=3"],
        "asynchronous": ["server.count=1", "server.mode=async"]}


def run(folder, options, arguments):
    settings = [f"train.steps={arguments.steps if not options else arguments.steps * 3 // 2}", "optim.schedule=constant", "train.batch=16", "train.validate_every=0", "train.threads=1",
                "model.layers=2", "model.width=128", "model.heads=4", "optim.warmup=50", f"optim.rate={arguments.rate}",
                f'chaos.slow=["{arguments.slow}"]', *options]
    command = [str(BUILD / "echelon"), "train", "--nproc", "4", "--name", "run"]
    for setting in settings:
        command += ["--set", setting]
    shutil.rmtree(folder / "runs", ignore_errors=True)
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900)
    if result.returncode:
        sys.exit(f"{' '.join(command)}\n{result.stdout}\n{result.stderr}")
    lines = [json.loads(line) for line in (folder / "runs/run/metrics.jsonl").read_text().splitlines()]
    times = [json.loads(line) for line in (folder / "runs/run/times.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    return losses, [time["step_ms"] / 1e3 for time in times], [age for line in lines for age in line.get("ages", [])]


def smooth(losses, window):
    return [statistics.fmean(losses[max(0, i + 1 - window):i + 1]) for i in range(len(losses))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=0.0003, help="learning rate; high rates do not tolerate stale gradients")
    parser.add_argument("--slow", default="1:3.0", help="which rank, and how many times slower")
    parser.add_argument("--save", action="store_true", help="write a dated page in docs/benchmarks/")
    arguments = parser.parse_args()
    facts = machine()
    print("\n".join(f"{name:12} {value}" for name, value in facts), flush=True)
    window = max(1, arguments.steps // 10)
    reached, whole, ages, ends = ({way: [] for way in WAYS} for _ in range(4))
    with tempfile.TemporaryDirectory() as name:
        for _ in range(arguments.rounds):
            target = None
            for way, options in WAYS.items():
                losses, seconds, old = run(Path(name), options, arguments)
                averaged = smooth(losses, window)
                target = averaged[-1] if target is None else target
                first = next((i for i, loss in enumerate(averaged) if i + 1 >= window and loss <= target * 1.002), None)
                reached[way].append(sum(seconds[:first + 1]) if first is not None else float("inf"))
                whole[way].append(sum(seconds))
                ends[way].append(averaged[-1])
                ages[way] += old
    rows = [["", "s to the loss", "s for all steps", "loss at the end", "mean age", "oldest"]]
    for way in WAYS:
        rows.append([way, f"{statistics.median(reached[way]):.1f}", f"{statistics.median(whole[way]):.1f}",
                     f"{statistics.median(ends[way]):.3f}",
                     f"{statistics.fmean(ages[way]):.2f}" if ages[way] else "", f"{max(ages[way])}" if ages[way] else ""])
    title = f"4 workers, chaos.slow={arguments.slow}, {arguments.steps} steps"
    print(f"\n{title}\n{plain(rows)}")
    if arguments.save:
        save("straggler", "A slow worker", facts, arguments.rounds, [(title, rows)])


if __name__ == "__main__":
    main()
