"""How long a training step of a GPT takes: Echelon beside PyTorch, in alternating rounds of one run.

    ./dev bench step                     the CPU: L=6 d=384 h=6 V=512 in fp32, long and short sequences
    ./dev bench step --world 2           the same on two ranks: data parallel beside PyTorch's DDP over Gloo
    ./dev bench step --world 2 --zero    and with state shared out: ZeRO beside FSDP2 and ZeroRedundancyOptimizer
    ./dev bench step --device cuda       a GPU: GPT-2 124M in bf16, large and small batch
    ./dev bench step --save              also write docs/benchmarks/DATE-step-DEVICE.md

The peer is a GPT-2 as people write it in PyTorch (GPT below). Both sides train on random tokens with AdamW, two decay
groups and a gradient norm of at most 1. Every measurement is a process of its own, so that neither side sees the
other's memory or threads; the order is reversed from round to round. A time is the median over the steps of a process
(the first five left out), then over the rounds; a ratio is the median of the rounds' own ratios, peer to Echelon.
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
import time
from dataclasses import dataclass
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

JOBS["zero"] = JOBS["cpu"]

# Name -> settings of Echelon, or of the peer below.
ECHELON = {
    "cpu": {"Echelon": {}},
    "cuda": {"Echelon, graph": {"train.graph": "on"}, "Echelon, no graph": {"train.graph": "off"}},
    "zero": {"Echelon": {}, "ZeRO-1": {"parallel.zero": 1}, "ZeRO-2": {"parallel.zero": 2}, "ZeRO-3": {"parallel.zero": 3}},
}
PEERS = {
    "cpu": {"PyTorch eager": {}, "PyTorch eager, fused AdamW": {"fused": True}},
    "zero": {"PyTorch FSDP2": {"shard": "fsdp2"}, "PyTorch ZeroRedundancyOptimizer": {"shard": "optimizer"}},
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


# ---- The peer ------------------------------------------------------------------------------------------


def status_mib(name):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024
    return 0


def peer(job, device, threads, world=1, fused=False, compile=False, autocast=False, shard=None):
    """Trains in PyTorch, this process being one rank of `world`; gives the seconds of a step and the memory."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            d = job.width
            self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
            self.attn, self.attn_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
            self.fc, self.mlp_proj = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

        def forward(self, x):
            b, t, d = x.shape
            q, k, v = (part.view(b, t, job.heads, d // job.heads).transpose(1, 2)
                       for part in self.attn(self.ln_1(x)).split(d, dim=2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.attn_proj(y.transpose(1, 2).contiguous().view(b, t, d))
            return x + self.mlp_proj(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(job.vocab, job.width), nn.Embedding(job.context, job.width)
            self.blocks = nn.Sequential(*(Block() for _ in range(job.layers)))
            self.ln_f = nn.LayerNorm(job.width)
            self.head = nn.Linear(job.width, job.vocab, bias=False)
            self.head.weight = self.wte.weight
            for parameter in self.parameters():
                if parameter.dim() >= 2:
                    nn.init.normal_(parameter, std=0.02)

        def forward(self, tokens, targets):
            x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
            logits = self.head(self.ln_f(self.blocks(x)))
            return F.cross_entropy(logits.view(-1, job.vocab), targets.view(-1))

    torch.manual_seed(1)
    on_gpu = device == "cuda"
    if not on_gpu:
        torch.set_num_threads(threads)
    if world > 1:
        torch.distributed.init_process_group("gloo")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    start_mib = status_mib("VmRSS")
    model = GPT().to(device)
    if on_gpu and not autocast:
        model = model.to(torch.bfloat16)
    if shard == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (world,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    groups = [{"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    rule = {"lr": 1e-4, "betas": (0.9, 0.95), **({"fused": True} if fused else {})}
    if shard == "optimizer":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(groups[0]["params"], optimizer_class=torch.optim.AdamW, weight_decay=0.1, **rule)
        optimizer.add_param_group(groups[1])
    else:
        optimizer = torch.optim.AdamW(groups, **rule)
    run = torch.compile(model) if compile else model
    if world > 1 and shard != "fsdp2":
        run = nn.parallel.DistributedDataParallel(model)
    batches = [torch.randint(0, job.vocab, (job.batch // world, job.context + 1)) for _ in range(8)]
    if on_gpu:
        batches = [batch.pin_memory() for batch in batches]

    def step(i):
        batch = batches[i % len(batches)].to(device, non_blocking=True)
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            loss = run(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    # A GPU is waited for once a window, so that its queue never runs dry within one.
    warm, window = min(5, job.steps // 2), (10 if on_gpu else 1)
    for i in range(warm):
        step(i)
    seconds = []
    for begin in range(warm, job.steps - window + 1, window):
        if on_gpu:
            torch.cuda.synchronize()
        start = time.perf_counter()
        for i in range(begin, begin + window):
            step(i)
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append((time.perf_counter() - start) / window)
    result = {"step_ms": 1e3 * statistics.median(seconds), "params": sum(p.numel() for p in model.parameters()),
              "host_mib": status_mib("VmHWM") - start_mib}
    if world > 1:
        torch.distributed.destroy_process_group()
    if on_gpu:
        result |= {"allocated_mib": torch.cuda.max_memory_allocated() / 2**20,
                   "reserved_mib": torch.cuda.max_memory_reserved() / 2**20}
    return result


# ---- Measuring -----------------------------------------------------------------------------------------


def last_words(text):
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no output"


def measure_peer(job, device, threads, world, settings):
    command = [sys.executable, __file__, "--device", device, "--peer", json.dumps([vars(job), threads, world, settings])]
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
            command += ["--set", f"{key}={value}"]
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
    """The results of every variant that is wanted, by name, one a round."""
    peers = PEERS[kind] if world == 1 else {name.replace("eager", "DDP"): s for name, s in PEERS[kind].items()}
    variants = {name: (measure_peer, settings) for name, settings in peers.items()}
    variants |= {name: (measure_echelon, settings) for name, settings in ECHELON[kind].items()}
    variants = {name: variant for name, variant in variants.items() if wanted(name)}
    results = {name: [] for name in variants}
    for number in range(rounds):
        for name in list(variants) if number % 2 == 0 else reversed(variants):
            function, settings = variants[name]
            result = function(job, device, threads, world, settings)
            results[name].append(result)
            tell(f"{job}, round {number + 1}/{rounds}: {name}: " +
                 (f"failed: {result['failed']}" if "failed" in result else f"{result['step_ms']:.2f} ms"))
    return results


# ---- Showing -------------------------------------------------------------------------------------------


def rows_of(job, kind, device, results):
    """A table's lines: header, then a row for each variant."""
    ours = [name for name in ECHELON[kind] if name in results]
    header = ["", "ms a step", "tokens/s", *(f"{name} is" for name in ours)]
    header += ["MiB in tensors", "MiB reserved"] if device == "cuda" else ["MiB of a rank"]
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


def page(device, world, facts, tables):
    today = datetime.date.today().isoformat()
    command = "./dev bench step " + " ".join(a for a in sys.argv[1:] if a != "--save")
    kind = "GPT-2 124M in bf16" if device == "cuda" else "a small GPT in fp32"
    where = "a GPU" if device == "cuda" else "a CPU" if world == 1 else f"{world} ranks of one machine"
    out = [f"# A training step on {where}: {kind}, {today}", ""]
    out += [f"- {name}: {value}" for name, value in facts] + [f"- Command: `{command.strip()}`", ""]
    for job, rounds, rows in tables:
        out += [f"## {job}", "", f"{rounds} rounds of {job.steps} steps.", "", markdown(rows), ""]
    out += ["Times are medians over steps, then over rounds (in brackets: the fastest and the slowest round). A ratio above 1",
            "means that Echelon is faster. benchmarks/step.py says how it is measured.", ""]
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, help="rounds of all variants (default: 5 on a CPU, 2 on a GPU)")
    parser.add_argument("--steps", type=int, help="steps of one process, in place of each job's own number")
    parser.add_argument("--threads", type=int, help="CPU threads of a rank, on both sides (default: cores over ranks)")
    parser.add_argument("--world", type=int, default=1, help="ranks that share a batch, on a CPU")
    parser.add_argument("--zero", action="store_true", help="with --world: state that is shared out over the ranks")
    parser.add_argument("--only", action="append", metavar="WORD", help="only variants whose name has this word")
    parser.add_argument("--all", action="store_true", help="on a GPU, also PyTorch without fp32 parameters")
    parser.add_argument("--job", type=int, choices=[0, 1], help="only the first or the second job")
    parser.add_argument("--save", action="store_true", help="write a dated page in docs/benchmarks/")
    parser.add_argument("--peer", help=argparse.SUPPRESS)  # one measurement of the peer, in a process of its own
    arguments = parser.parse_args()
    device = arguments.device
    if arguments.peer:
        job, threads, world, settings = json.loads(arguments.peer)
        print(json.dumps(peer(Job(**job), device, threads, world, **settings)))
        return
    world = arguments.world
    threads = arguments.threads or max(1, len(os.sched_getaffinity(0)) // world)

    rounds = arguments.rounds or (2 if device == "cuda" else 5)
    kind = "zero" if arguments.zero else device
    if arguments.zero and (world == 1 or device != "cpu"):
        parser.error("--zero is for several ranks on a CPU: give --world")
    jobs = JOBS[kind] if arguments.job is None else [JOBS[kind][arguments.job]]
    if arguments.steps:
        jobs = [Job(**(vars(job) | {"steps": arguments.steps})) for job in jobs]

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
        tables.append((job, rounds, rows_of(job, kind, device, results)))
        print(f"\n{job}\n{plain(tables[-1][2])}", flush=True)
    if arguments.save:
        name = device if world == 1 else f"{world}-ranks" + ("-zero" if arguments.zero else "")
        path = ROOT / "docs" / "benchmarks" / f"{datetime.date.today().isoformat()}-step-{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page(device, world, facts, tables))
        print(f"\nwritten: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
