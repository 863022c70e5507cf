"""The cost of larger batches: validation loss over samples seen, for each optimiser, batch factor and scaling of the rate.

    ./dev bench large_batch                       all runs; tables, OUT/large-batch.json, a page and a picture in OUT/docs
    ./dev bench large_batch --search              first search the rate of each optimiser at batch x1, then run with it
    ./dev bench large_batch --search only         only search
    ./dev bench large_batch --from FILE.json      no run: write page and picture again from an earlier call's file
    ./dev bench large_batch --save                page and picture go to this repository's docs/

Every run sees the same number of samples, so batch x16 takes a sixteenth of the steps. optim.scale scales the rate from
batch x1: none, linear (times the factor), sqrt (times its root). Each run warms up over the same share of its samples, and its
rate falls to zero linearly. Only the rate at batch x1 is tuned, once for each optimiser; the rules scale it to larger batches.
Intermediate points are the loss on the same --validate samples, the last one is the loss on the whole validation part. A run
whose loss or gradient stops being finite is recorded as diverged at that sample.

A run is one `echelon train` on one thread; --jobs of them run at once. Batches x1 come first, then x16, then x4. After
--deadline seconds no new run begins, and the results so far are written. Finished runs are kept in OUT/finished and reused by
later calls with the same settings, so an interrupted call can be repeated. Needs only Python's standard library.
"""

import argparse
import concurrent.futures
import datetime
import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from _curves import Curve, draw
from _page import BUILD, ROOT, command_line, machine, output_of, plain, save

MODEL = ["model.layers=2", "model.width=128", "model.heads=4", "model.context=64"]
FACTORS = [1, 4, 16]
SCALES = ["none", "linear", "sqrt"]
WARMUP = 0.05  # of the steps
LIMIT = 1800  # seconds that one run may take

# Peak rates at batch x1, found by --search (docs/benchmarks/2026-11-15-large-batch.md), and where the search begins.
RATES = {"adamw": 0.002, "lamb": 0.01, "lars": 8.0, "sgd": 0.1}

# sgd and lars add the decay to the gradient, where adamw's and lamb's decoupled 0.1 would dominate it.
DECAY = {"adamw": 0.1, "lamb": 0.1, "lars": 1e-4, "sgd": 1e-4}

COLOURS = {1: "#222222", 4: "#0072b2", 16: "#d55e00"}
DASHES = {"none": "", "linear": "8 4", "sqrt": "2 4"}
TITLES = {"adamw": "AdamW", "lamb": "LAMB", "lars": "LARS", "sgd": "SGD with momentum"}


# ---- One run -------------------------------------------------------------------------------------------


def settings(optimiser, rate, factor, scale, samples, points, arguments):
    batch = arguments.batch * factor
    steps = samples // batch
    chosen = [*MODEL, "train.threads=1", "train.device=cpu", "train.save_last=false", f"train.seed={arguments.seed}",
              f"data.source={arguments.data}", f"data.validation={arguments.validation}", f"train.steps={steps}",
              f"train.batch={batch}", f"train.validate_every={max(1, steps // points)}",
              f"train.validate_samples={arguments.validate}", f"optim.name={optimiser}", f"optim.rate={rate:g}",
              f"optim.scale={scale}", f"optim.base_batch={arguments.batch}", "optim.schedule=linear",
              f"optim.warmup={max(1, round(WARMUP * steps))}", f"optim.decay={DECAY[optimiser]:g}"]
    return chosen + arguments.set


def curve_of(lines, batch):
    """(samples seen, bits/byte) of every validation in a run's metrics.jsonl."""
    found = (json.loads(line) for line in lines)
    return [[line["step"] * batch, line["val_bits_per_byte"]] for line in found
            if math.isfinite(line.get("val_bits_per_byte") or math.nan)]


def outcome(code, output, curve, batch):
    """The outcome of a run: done, diverged (with the samples seen) or failed (with the reason)."""
    if code == 0:
        if not curve:
            return {"state": "failed", "curve": [], "why": "there was no validation"}
        return {"state": "done", "curve": curve, "final": curve[-1][1]}
    lost = re.search(r"became (?:NaN|infinite) at step (\d+)", output)
    if lost:
        return {"state": "diverged", "curve": curve, "diverged_at": int(lost[1]) * batch}
    return {"state": "failed", "curve": curve, "why": output.strip()[-2000:] or f"exit status {code}"}


def train(run, arguments):
    """Runs one, or reuses the result of an earlier call."""
    identity = hashlib.sha256(json.dumps([arguments.version, run["settings"]]).encode()).hexdigest()[:16]
    kept = arguments.out / "finished" / f"{identity}.json"
    if kept.exists():
        return run | json.loads(kept.read_text())
    if time.monotonic() > arguments.end:
        return run | {"state": "not run", "curve": []}
    batch = arguments.batch * run["factor"]
    folder = arguments.out / "work" / identity
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [str(arguments.echelon), "train", "--name", "run"]
    for setting in run["settings"]:
        command += ["--set", setting]
    began = time.monotonic()
    try:
        done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, errors="replace", timeout=LIMIT, env=os.environ | {"OMP_NUM_THREADS": "1"})
        code, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired:
        code, output = -1, f"took longer than {LIMIT} s"
    metrics = folder / "runs" / "run" / "metrics.jsonl"
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    result = outcome(code, output, curve_of(lines, batch), batch) | {"seconds": round(time.monotonic() - began, 1)}
    shutil.rmtree(folder)
    if result["state"] != "failed":
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(result))
    print(f"{TITLES[run['optimiser']]:18} {name_of(run):12} rate {run['rate']:<8g} {said(run | result):>12}  "
          f"{result['seconds']:6.1f} s\n", end="", flush=True)  # one write, because runs may end at the same time
    return run | result


def name_of(run):
    return f"x{run['factor']}" if run["factor"] == 1 else f"x{run['factor']} {run['scale']}"


def said(run):
    """A run's end in a cell of a table."""
    if run["state"] == "done":
        return f"{run['final']:.3f}"
    return f"diverged at {run['diverged_at']:,}" if run["state"] == "diverged" else run["state"]


def side_by_side(runs, arguments):
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        return list(pool.map(lambda run: train(run, arguments), runs))


# ---- Rates at batch x1 ---------------------------------------------------------------------------------


def search(arguments):
    """The rate with the lowest loss after --search-samples, per optimiser; extends the range while an end of it is best."""
    tried = {optimiser: {} for optimiser in arguments.optimisers}
    wanted = [(o, arguments.rates[o] * 2.0 ** i) for o in tried for i in range(-2, 3)]
    for _ in range(4):
        if not wanted:
            break
        runs = [{"optimiser": o, "rate": rate, "factor": 1, "scale": "none",
                 "settings": settings(o, rate, 1, "none", arguments.search_samples, 1, arguments)} for o, rate in wanted]
        for run in side_by_side(runs, arguments):
            tried[run["optimiser"]][run["rate"]] = run
        wanted = []
        for optimiser, found in tried.items():
            best = best_rate(found)
            if best is not None and best == min(found):
                wanted.append((optimiser, best / 2))
            if best is not None and best == max(found):
                wanted.append((optimiser, best * 2))
    chosen = {o: best_rate(found) or arguments.rates[o] for o, found in tried.items()}
    return chosen, [{key: run[key] for key in run if key != "settings"} for found in tried.values()
                    for _, run in sorted(found.items())]


def best_rate(found):
    done = {rate: run["final"] for rate, run in found.items() if run["state"] == "done"}
    return min(done, key=done.get) if done else None


# ---- Results -----------------------------------------------------------------------------------


def all_runs(arguments):
    """The most informative first: x1 is the baseline, x16 shows the largest differences."""
    order = [(1, "none"), (16, "linear"), (16, "sqrt"), (16, "none"), (4, "linear"), (4, "sqrt"), (4, "none")]
    return [{"optimiser": o, "rate": arguments.rates[o], "factor": factor, "scale": scale,
             "settings": settings(o, arguments.rates[o], factor, scale, arguments.samples, arguments.points, arguments)}
            for factor, scale in order for o in arguments.optimisers]


def final_table(record):
    at = {(r["optimiser"], r["factor"], r["scale"]): r for r in record["runs"]}
    rows = [["", "rate at x1", "x1", *(f"x{f}, {s}" for f in FACTORS[1:] for s in SCALES)]]
    for optimiser, rate in record["rates"].items():
        cells = [at.get((optimiser, f, s)) for f, s in [(1, "none"), *((f, s) for f in FACTORS[1:] for s in SCALES)]]
        rows.append([TITLES[optimiser], f"{rate:g}", *(said(cell) if cell else "not run" for cell in cells)])
    return rows


def search_table(record):
    rows = [["", "rate", "bits/byte", ""]]
    for run in record["search"]:
        tried = [r["rate"] for r in record["search"] if r["optimiser"] == run["optimiser"] and r["state"] != "not run"]
        chosen = "chosen" if run["rate"] == record["rates"][run["optimiser"]] else ""
        if chosen and tried and run["rate"] in (min(tried), max(tried)):
            chosen = "chosen, at the end of what was tried"
        rows.append([TITLES[run["optimiser"]], f"{run['rate']:g}", said(run), chosen])
    return rows


def picture(record):
    charts = {TITLES[o]: [] for o in record["rates"]}
    for run in sorted(record["runs"], key=lambda r: (-r["factor"], r["scale"])):  # x1 is drawn last, on top
        if run["curve"] or run["state"] == "diverged":
            charts[TITLES[run["optimiser"]]].append(
                Curve(name_of(run), run["curve"], COLOURS[run["factor"]], DASHES[run["scale"]], run.get("diverged_at")))
    legend = [*(Curve(f"batch x{f} = {record['batch'] * f}", [], COLOURS[f]) for f in FACTORS),
              Curve("diverged", [], "#222222", stopped=0), *(Curve(f"rate scaled: {s}", [], "#777777", DASHES[s]) for s in SCALES)]
    rates = "Rates were searched for at batch x1 only." if record["search"] else "Rates were given for batch x1."
    return draw("Validation loss over samples seen", f"{record['job']}, {WARMUP:.0%} warm-up, one seed. {rates}", charts, legend,
                "samples seen", "bits/byte")


def write(record, docs):
    svg = docs / "images" / "large-batch.svg"
    svg.parent.mkdir(parents=True, exist_ok=True)
    svg.write_text(picture(record))
    tables = [("Validation bits/byte at the end", final_table(record)),
              ("On the way", "![validation loss over samples seen](../images/large-batch.svg)")]
    if record["search"]:
        tables.append((f"Rates tried at batch x1, {record['search_samples']:,} samples", search_table(record)))
    for heading, rows in tables:
        if not isinstance(rows, str):
            print(f"\n{heading}\n{plain(rows)}")
    save("large-batch", f"Large batches: {record['job']}", record["facts"], f"1, seed {record['seed']}", tables, docs,
         record["date"], record["command"])
    print(f"written: {os.path.relpath(svg)}")


def tell_failures(record):
    """The exit status: a diverged run is a result, a failed one is not."""
    failed = [run for run in record["runs"] + record["search"] if run["state"] == "failed"]
    for run in failed:
        print(f"\nfailed: {TITLES[run['optimiser']]} {name_of(run)}\n{run['why']}", file=sys.stderr)
    return 1 if failed else 0


def pair(text):
    optimiser, _, rate = text.partition("=")
    if optimiser not in RATES or not rate:
        raise argparse.ArgumentTypeError(f"'{text}' is not one of {', '.join(RATES)} with a rate, as adamw=0.004")
    return optimiser, float(rate)


def arguments_of():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--echelon", type=Path, default=BUILD / "echelon", help="the program")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "large-batch", help="folder for what is written")
    parser.add_argument("--json", type=Path, help="all curves (default: OUT/large-batch.json)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="runs side by side")
    parser.add_argument("--deadline", type=float, default=math.inf, help="seconds after which no new run begins")
    parser.add_argument("--optimisers", type=lambda t: t.split(","), default=list(RATES), help="some of adamw,lamb,lars,sgd")
    parser.add_argument("--batch", type=int, default=8, help="batch x1, in sequences")
    parser.add_argument("--samples", type=int, default=25600, help="samples of every run; rounded to a multiple of the largest batch")
    parser.add_argument("--points", type=int, default=20, help="validations of a run")
    parser.add_argument("--validate", type=int, default=256, help="samples of a validation on the way")
    parser.add_argument("--validation", type=float, default=0.02, help="share of the text kept for validation")
    parser.add_argument("--data", default="stdlib", help="text file or folder instead of Python's sources")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=pair, action="append", default=[], metavar="NAME=RATE", help="rate at batch x1, as adamw=0.004")
    parser.add_argument("--search", nargs="?", choices=["first", "only"], const="first", help="look for the rates at batch x1")
    parser.add_argument("--search-samples", type=int, default=6400, help="of a run of the search")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another option of echelon train")
    parser.add_argument("--from", dest="record", type=Path, metavar="FILE", help="write page and picture from an earlier call's JSON")
    parser.add_argument("--save", action="store_true", help="page and picture to this repository's docs/")
    arguments = parser.parse_args()
    if unknown := set(arguments.optimisers) - set(RATES):
        parser.error(f"unknown optimiser '{unknown.pop()}': choose from {', '.join(RATES)}")
    largest = arguments.batch * FACTORS[-1]
    arguments.samples = max(1, round(arguments.samples / largest)) * largest
    arguments.rates = {o: (RATES | dict(arguments.rate))[o] for o in arguments.optimisers}
    # Each run has its own folder.
    arguments.out, arguments.echelon = arguments.out.resolve(), arguments.echelon.resolve()
    if Path(arguments.data).exists():
        arguments.data = str(Path(arguments.data).resolve())
    arguments.end = time.monotonic() + arguments.deadline
    return arguments


def main():
    arguments = arguments_of()
    docs = ROOT / "docs" if arguments.save else arguments.out / "docs"
    if arguments.record:
        return write(json.loads(arguments.record.read_text()), docs)

    arguments.version = output_of(str(arguments.echelon), "version")
    if not arguments.version:
        sys.exit(f"{arguments.echelon} does not run; give the path of the program with --echelon")
    facts = machine(f", {arguments.jobs} runs of one thread side by side", program=arguments.echelon)
    print("\n".join(f"{name:12} {value}" for name, value in facts), flush=True)
    record = {"date": datetime.date.today().isoformat(), "command": command_line(), "facts": facts, "batch": arguments.batch,
              "samples": arguments.samples, "search_samples": arguments.search_samples, "seed": arguments.seed,
              "job": ", ".join([f"{arguments.samples:,} samples of 64 bytes", "a GPT of 2 layers of width 128", *arguments.set]), "search": [], "runs": []}
    if arguments.search:
        arguments.rates, record["search"] = search(arguments)
    record["rates"] = arguments.rates
    if arguments.search == "only":
        print(f"\n{plain(search_table(record))}\n\n" + " ".join(f"--rate {o}={rate:g}" for o, rate in arguments.rates.items()))
        return tell_failures(record)
    record["runs"] = side_by_side(all_runs(arguments), arguments)
    path = arguments.json or arguments.out / "large-batch.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1))
    write(record, docs)
    print(f"written: {os.path.relpath(path)}")
    return tell_failures(record)


if __name__ == "__main__":
    sys.exit(main())
