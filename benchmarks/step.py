"""The time of a training step of a GPT: Echelon and PyTorch, in alternating rounds of one run.

    ./dev bench step                        the CPU: L=6 d=384 h=6 V=512 in fp32, long and short sequences
    ./dev bench step --world 2              the same on two ranks: data parallel against PyTorch's DDP over Gloo
    ./dev bench step --world 2 --zero       with sharded state: ZeRO against FSDP2 and ZeroRedundancyOptimizer
    ./dev bench step --world 2 --pipeline   with pipeline stages: against torch.distributed.pipelining
    ./dev bench step --world 2 --tensor     with split layers: against PyTorch's parallelize_module
    ./dev bench step --device cuda          a GPU: GPT-2 124M in bf16, large and small batch
    ./dev bench step --save                 also write docs/benchmarks/DATE-step-DEVICE.md

The PyTorch side is a GPT-2 as people write it in PyTorch (_peer.py). Both sides train on random tokens with AdamW, two
decay groups and gradients clipped to a norm of 1. On several ranks, PyTorch's first losses must equal those of one process.
Every measurement is a separate process, so that neither side sees the other's memory or threads, and the order is reversed
from round to round. A time is the median over the steps of a process (without the first five), then over the rounds. A ratio
is the median over rounds of PyTorch's time divided by Echelon's.
"""

import argparse
import datetime
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from _page import BUILD, ROOT, machine, markdown, plain


@dataclass(frozen=True)
class Job:
    layers: int
    width: int
    heads: int
    vocab: int
    context: int
    batch: int
    steps: int

    def __str__(self):
        return (f"L={self.layers} d={self.width} h={self.heads} V={self.vocab} T={self.context} batch {self.batch}")


JOBS = {
    "cpu": [Job(6, 384, 6, 512, 256, 8, steps=15), Job(6, 384, 6, 512, 32, 4, steps=60)],
    "cuda": [Job(12, 768, 12, 50304, 1024, 32, steps=45), Job(12, 768, 12, 50304, 1024, 4, steps=105)],
}

SPLITS = ("zero", "pipeline", "tensor")  # how several ranks may train besides data parallelism
JOBS |= {split: JOBS["cpu"] for split in SPLITS}

# Name -> settings of Echelon or of PyTorch; {world} is the number of ranks.
ECHELON = {
    "cpu": {"Echelon": {}},
    "cuda": {"Echelon, graph": {"train.graph": "on"}, "Echelon, no graph": {"train.graph": "off"}},
    "zero": {"Echelon": {}, "ZeRO-1": {"parallel.zero": 1}, "ZeRO-2": {"parallel.zero": 2}, "ZeRO-3": {"parallel.zero": 3}},
    "pipeline": {f"Echelon {schedule}, {m} micro-batches": {"parallel.pipeline": "{world}", "train.micro_batches": m,
                                                            "pipeline.schedule": schedule.lower()}
                 for schedule, m in (("1F1B", 4), ("1F1B", 8), ("zero-bubble", 4))},
    "tensor": {"Echelon": {"parallel.tensor": "{world}"}},
}
PEERS = {
    "cpu": {"PyTorch eager": {}, "PyTorch eager, fused AdamW": {"fused": True}},
    "zero": {"PyTorch FSDP2": {"shard": "fsdp2"}, "PyTorch ZeroRedundancyOptimizer": {"shard": "optimizer"}},
    # Fewer micro-batches idle longer, more of them have smaller products: the best number depends on the machine.
    "pipeline": {f"PyTorch 1F1B, {m} micro-batches": {"micro_batches": m, "fused": True} for m in (2, 4, 8)},
    "tensor": {"PyTorch tensor parallel": {"sequence": False, "fused": True},
               "PyTorch tensor and sequence parallel": {"sequence": True, "fused": True}},
    "cuda": {
        # As Echelon: products in bf16, parameters and their update in fp32. Unlike it, autocast keeps
        # norms, the residual stream and the softmax in fp32.
        "PyTorch eager, autocast": {"fused": True, "autocast": True},
        "torch.compile, autocast": {"fused": True, "autocast": True, "compile": True},
        # All activations in bf16 like Echelon's, but no fp32 copy of the parameters: small updates are lost.
        "PyTorch eager, all in bf16": {"fused": True},
        "torch.compile, all in bf16": {"fused": True, "compile": True},
    },
}
ONLY_WITH_ALL = "all in bf16"  # in a variant's name: measured with --all only


# ---- Measuring -----------------------------------------------------------------------------------------


def last_words(text):
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no output"


def measure_peer(job, device, threads, world, settings):
    given = {"threads": threads, "world": world, **settings}
    command = [sys.executable, __file__, "--device", device, "--peer", json.dumps([vars(job), given])]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {**os.environ, "OMP_NUM_THREADS": str(threads), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
              "WORLD_SIZE": str(world)}
    ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env={**shared, "RANK": str(rank)}) for rank in range(world)]
    said = [rank.communicate(timeout=600) for rank in ranks]
    if ranks[0].returncode != 0:
        return {"failed": last_words(said[0][1])}
    return json.loads(said[0][0].splitlines()[-1])


def measure_echelon(job, device, threads, world, settings):
    values = {
        "model.layers": job.layers, "model.width": job.width, "model.heads": job.heads, "model.vocab": job.vocab,
        "model.context": job.context, "model.tied": "true", "data.source": "random", "train.batch": job.batch,
        "train.steps": job.steps, "train.device": device, "train.precision": "bf16" if device == "cuda" else "fp32",
        "train.threads": threads, "train.validate_every": 0, "optim.name": "adamw", "optim.rate": 1e-4,
        "optim.decay": 0.1, "optim.clip": 1.0, **settings,
    }
    with tempfile.TemporaryDirectory() as folder:
        command = [str(BUILD / "echelon"), "train", "--json", "summary.json", "--nproc", str(world)]
        for key, value in values.items():
            command += ["--set", f"{key}={value}".format(world=world)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600,
                              env={**os.environ, "OMP_NUM_THREADS": str(threads)})
        if done.returncode != 0:
            return {"failed": last_words(done.stderr)}
        summary = json.loads((Path(folder) / "summary.json").read_text())
    result = {"step_ms": summary["step_ms"], "params": summary["params"],
              "host_mib": summary["peak_mib"] - summary["start_mib"]}
    if device == "cuda":
        result |= {"allocated_mib": summary["device_peak_allocated_mib"], "reserved_mib": summary["device_peak_mib"]}
    return result


def measure(job, kind, device, threads, world, rounds, wanted, tell):
    """The results of every selected variant, by name, one per round."""
    peers = PEERS[kind] if world == 1 else {name.replace("eager", "DDP"): s for name, s in PEERS[kind].items()}
    variants = {name: (measure_peer, settings) for name, settings in peers.items()}
    variants |= {name: (measure_echelon, settings) for name, settings in ECHELON[kind].items()}
    pieces = {name: max(settings.get(key, 1) for key in ("micro_batches", "train.micro_batches"))
              for name, (_, settings) in variants.items()}
    variants = {name: variant for name, variant in variants.items() if wanted(name) and pieces[name] <= job.batch}
    if world > 1:
        one = measure_peer(replace(job, steps=10), device, threads, 1, {})
        if "failed" in one:
            sys.exit(f"PyTorch in one process: {one['failed']}")
        variants = {name: (function, settings | ({"expected": one["losses"]} if function == measure_peer else {}))
                    for name, (function, settings) in variants.items()}
    results = {name: [] for name in variants}
    for number in range(rounds):
        for name in list(variants) if number % 2 == 0 else reversed(variants):
            function, settings = variants[name]
            result = function(job, device, threads, world, settings)
            results[name].append(result)
            tell(f"{job}, round {number + 1}/{rounds}: {name}: " +
                 (f"failed: {result['failed']}" if "failed" in result else f"{result['step_ms']:.2f} ms"))
    return results


# ---- Output -------------------------------------------------------------------------------------------


def rows_of(job, kind, device, results):
    """The lines of a table: a header, then a row per variant."""
    ours = [name for name in ECHELON[kind] if name in results]
    header = ["", "ms a step", "tokens/s", *(f"{name} is" for name in ours)]
    header += ["MiB in tensors", "MiB reserved"] if device == "cuda" else ["MiB of rank 0"]
    rows = [header]
    for name, rounds in results.items():
        good = [r for r in rounds if "failed" not in r]
        if not good:
            rows.append([name, "failed", *[""] * (len(header) - 2)])
            continue
        times = [r["step_ms"] for r in good]
        spread = f" ({min(times):.2f} to {max(times):.2f})" if len(times) > 1 else ""
        step = statistics.median(times)
        row = [name, f"{step:.2f}{spread}", f"{job.batch * job.context / step * 1e3:,.0f}"]
        for own in ours:
            pairs = [theirs["step_ms"] / mine["step_ms"] for theirs, mine in zip(rounds, results[own])
                     if "failed" not in theirs and "failed" not in mine]
            row.append(f"{statistics.median(pairs):.2f}x" if pairs and name not in ours else "")
        keys = ("allocated_mib", "reserved_mib") if device == "cuda" else ("host_mib",)
        row += [f"{max(r[key] for r in good):,.0f}" for key in keys]
        rows.append(row)
    return rows


def fastest_peer(kind, results):
    """The fastest of several configurations of PyTorch."""
    medians = {name: statistics.median(times) for name, rounds in results.items() if name not in ECHELON[kind]
               if (times := [r["step_ms"] for r in rounds if "failed" not in r])}
    return [f"PyTorch's fastest here: {min(medians, key=medians.get)}."] if len(medians) > 1 else []


def page(device, world, facts, tables):
    today = datetime.date.today().isoformat()
    command = "./dev bench step " + " ".join(a for a in sys.argv[1:] if a != "--save")
    kind = "GPT-2 124M in bf16" if device == "cuda" else "a small GPT in fp32"
    where = "a GPU" if device == "cuda" else "a CPU" if world == 1 else f"{world} ranks of one machine"
    out = [f"# A training step on {where}: {kind}, {today}", ""]
    out += [f"- {name}: {value}" for name, value in facts] + [f"- Command: `{command.strip()}`", ""]
    for job, rounds, rows, notes in tables:
        out += [f"## {job}", "", " ".join([f"{rounds} rounds of {job.steps} steps.", *notes]), "", markdown(rows), ""]
    out += ["Times are medians over steps, then over rounds (in brackets: the fastest and the slowest round). A ratio is "
            "the median\nof the rounds' own; above 1, Echelon is faster. benchmarks/step.py says how it is measured.", ""]
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, help="rounds of all variants (default: 5 on a CPU, 2 on a GPU)")
    parser.add_argument("--steps", type=int, help="steps of one process, instead of each job's own number")
    parser.add_argument("--threads", type=int, help="CPU threads of a rank, on both sides (default: cores over ranks)")
    parser.add_argument("--world", type=int, default=1, help="ranks that share a batch, on a CPU")
    split = parser.add_mutually_exclusive_group()
    split.add_argument("--zero", action="store_true", help="with --world: sharded state")
    split.add_argument("--pipeline", action="store_true", help="with --world: layers in stages, one a rank")
    split.add_argument("--tensor", action="store_true", help="with --world: layers split over the ranks")
    parser.add_argument("--only", action="append", metavar="WORD", help="only variants whose name has this word")
    parser.add_argument("--all", action="store_true", help="on a GPU, also measure PyTorch without fp32 parameters")
    parser.add_argument("--job", type=int, choices=[0, 1], help="only the first or the second job")
    parser.add_argument("--save", action="store_true", help="write a dated page in docs/benchmarks/")
    parser.add_argument("--peer", help=argparse.SUPPRESS)  # one measurement of PyTorch, in a separate process
    arguments = parser.parse_args()
    device = arguments.device
    if arguments.peer:
        from _peer import peer

        job, given = json.loads(arguments.peer)
        print(json.dumps(peer(Job(**job), device, **given)))
        return
    world = arguments.world
    threads = arguments.threads or max(1, len(os.sched_getaffinity(0)) // world)

    rounds = arguments.rounds or (2 if device == "cuda" else 5)
    kind = next((split for split in SPLITS if getattr(arguments, split)), device)
    if kind in SPLITS and (world == 1 or device != "cpu"):
        parser.error(f"--{kind} is for several ranks on a CPU: give --world")
    jobs = JOBS[kind] if arguments.job is None else [JOBS[kind][arguments.job]]
    if arguments.steps:
        jobs = [replace(job, steps=arguments.steps) for job in jobs]

    def wanted(name):
        if arguments.only:
            return any(word in name for word in arguments.only)
        return arguments.all or ONLY_WITH_ALL not in name

    facts = machine(f", {world} ranks of {threads} threads" if world > 1 else f", {threads} threads used", device)
    print("\n".join(f"{name:12} {value}" for name, value in facts), flush=True)
    tables = []
    for job in jobs:
        results = measure(job, kind, device, threads, world, rounds, wanted,
                          lambda line: print(line, file=sys.stderr, flush=True))
        counts = {r["params"] for rs in results.values() for r in rs if "failed" not in r}
        if len(counts) > 1:
            sys.exit(f"the models differ: {sorted(counts)} parameters")
        tables.append((job, rounds, rows_of(job, kind, device, results), fastest_peer(kind, results)))
        print(f"\n{job}\n{plain(tables[-1][2])}", flush=True)
    if arguments.save:
        name = device if world == 1 else f"{world}-ranks" + (f"-{kind}" if kind in SPLITS else "")
        path = ROOT / "docs" / "benchmarks" / f"{datetime.date.today().isoformat()}-step-{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page(device, world, facts, tables))
        print(f"\nwritten: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
