"""The PyTorch side of benchmarks/step.py: a GPT-2 as people write it in PyTorch, in one process or with PyTorch's parallelism.

A way to train is a function from the model and the ranks to a Way. The losses of its first steps must equal those of one
process from the same weights and tokens; otherwise nothing is measured.
"""

import contextlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

CHECKED = 3  # first steps
TOLERANCE = 1e-6  # relative tolerance of their losses: fp32 sums in another order


# ---- The model -----------------------------------------------------------------------------------------


class Embedding(nn.Module):
    def __init__(self, job):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(job.vocab, job.width), nn.Embedding(job.context, job.width)

    def forward(self, tokens):
        return self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))


class Block(nn.Module):
    def __init__(self, job):
        super().__init__()
        d = job.width
        self.head_width = d // job.heads
        self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn, self.attn_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.fc, self.mlp_proj = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        qkv = self.attn(self.ln_1(x))
        b, t, width = qkv.shape  # tensor parallel: only this rank's heads
        q, k, v = (part.view(b, t, -1, self.head_width).transpose(1, 2) for part in qkv.split(width // 3, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(y.transpose(1, 2).contiguous().view(b, t, width // 3))
        return x + self.mlp_proj(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class Head(nn.Module):
    def __init__(self, job):
        super().__init__()
        self.ln_f, self.logits = nn.LayerNorm(job.width), nn.Linear(job.width, job.vocab, bias=False)

    def forward(self, x):
        return self.logits(self.ln_f(x))


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class GPT(nn.Module):
    def __init__(self, job):
        super().__init__()
        self.embedding, self.head = Embedding(job), Head(job)
        self.blocks = nn.Sequential(*(Block(job) for _ in range(job.layers)))
        self.head.logits.weight = self.embedding.wte.weight
        for parameter in self.parameters():
            if parameter.dim() >= 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets):
        return loss_of(self.head(self.blocks(self.embedding(tokens))), targets)


# ---- Ways to train it ----------------------------------------------------------------------------------


@dataclass
class Way:
    parameters: list  # that this rank updates
    # (tokens, targets) -> this rank's part of the mean loss of the batch; the parts of all ranks add up. Leaves gradients.
    backward: Callable
    clip: Callable  # clips the norm of all gradients to 1
    shares: int = 1  # parts of the batch, one per rank; 1: every rank has all of it


def by_autograd(model, run, world=1, context=contextlib.nullcontext):
    """Each rank has its samples; `run` is the model, or a wrapper that averages its gradients over the ranks."""
    parameters = list(model.parameters())

    def backward(tokens, targets):
        with context():
            loss = run(tokens, targets)
        loss.backward()
        return loss.detach() / world

    return Way(parameters, backward, lambda: nn.utils.clip_grad_norm_(parameters, 1.0), shares=world)


def fsdp2(model, world):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (world,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return by_autograd(model, model, world)


def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def clip(own, shared=(), copies=()):
    """Clips the norm to 1. `own` gradients are only here, `shared` ones on every rank; another rank counts `copies`."""
    gradients = [[local(p.grad) for p in some] for some in (own, shared, copies)]
    square = nn.utils.get_total_norm(gradients[0]).square()
    dist.all_reduce(square)
    norm = (square + nn.utils.get_total_norm(gradients[1]).square()).sqrt()
    scale = (1.0 / (norm + 1e-6)).clamp(max=1.0)
    for some in gradients:
        for gradient in some:
            gradient.mul_(scale)


def pipeline(model, world, micro_batches):
    """1F1B over stages of equally many blocks, the embedding in the first and the head in the last.

    Both use one matrix. torch.distributed.pipelining leaves that to its user: each has a copy, and their gradients are summed.
    """
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, layers = dist.get_rank(), len(model.blocks)
    first, last = rank == 0, rank == world - 1
    stage = nn.Sequential(*([model.embedding] if first else []),
                          *model.blocks[rank * layers // world:(rank + 1) * layers // world],
                          *([model.head] if last else []))
    tied, ends = model.embedding.wte.weight, dist.new_group([0, world - 1])
    schedule = Schedule1F1B(PipelineStage(stage, rank, world, torch.device("cpu")), micro_batches, loss_fn=loss_of)
    own = [p for p in stage.parameters() if p is not tied or first]
    copies = [tied] if last else []

    def backward(tokens, targets):
        losses = []
        if last:
            schedule.step(target=targets, losses=losses, return_outputs=False)
        else:
            schedule.step(*([tokens] if first else []), return_outputs=False)
        if first or last:
            dist.all_reduce(tied.grad, group=ends)
        return torch.stack(losses).detach().mean() if last else torch.zeros(())

    return Way(own + copies, backward, lambda: clip(own, copies=copies))


def tensor(model, world, sequence):
    """Splits heads, the MLP's width, the vocabulary and the loss over the ranks, as in PyTorch's tutorial on tensor
    parallelism. With `sequence`, the layers in between are split over the tokens."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel, SequenceParallel, loss_parallel,
                                                   parallelize_module)

    mesh = init_device_mesh("cpu", (world,))
    between = Shard(1) if sequence else Replicate()
    norms = {"ln_1": SequenceParallel(), "ln_2": SequenceParallel(), "ln_f": SequenceParallel()} if sequence else {}
    columns, rows = ColwiseParallel(input_layouts=between), RowwiseParallel(output_layouts=between)
    for block in model.blocks:
        with torch.no_grad():  # the columns of a rank become q, k and v of its own heads
            for whole in (block.attn.weight, block.attn.bias):
                whole.copy_(whole.unflatten(0, (3, world, -1)).transpose(0, 1).flatten(0, 2))
        parallelize_module(block, mesh, {"attn": columns, "attn_proj": rows, "fc": columns, "mlp_proj": rows}
                           | {name: style for name, style in norms.items() if name != "ln_f"})
    parallelize_module(model.embedding, mesh,
                       {"wte": RowwiseParallel(input_layouts=Replicate(), output_layouts=between)}
                       | ({"wpe": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0))} if sequence else {}))
    parallelize_module(model.head, mesh,
                       {"logits": ColwiseParallel(input_layouts=between, output_layouts=Shard(-1), use_local_output=False)}
                       | {name: style for name, style in norms.items() if name == "ln_f"})
    model.head.logits.weight = model.embedding.wte.weight

    parameters = list(model.parameters())
    split = [p for p in parameters if isinstance(p, DTensor) and p.placements[0].is_shard()]
    shared = [p for p in parameters if not any(p is other for other in split)]

    def backward(tokens, targets):
        with loss_parallel():
            loss = model(tokens, targets)
            loss.backward()
        for p in parameters:  # DTensor leaves some in another layout: as partial sums over tokens, or whole
            if isinstance(p, DTensor):
                p.grad = p.grad.redistribute(placements=p.placements)
        return loss.detach().to_local() / world

    return Way(parameters, backward, lambda: clip(split, shared))


# ---- Training ------------------------------------------------------------------------------------------


def status_mib(name):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024
    return 0


def make_optimizer(parameters, fused, shared_out):
    """AdamW. Matrices decay, norms and biases do not; an update takes DTensors or plain tensors, not both."""
    rule = {"lr": 1e-4, "betas": (0.9, 0.95), **({"fused": True} if fused else {})}
    groups = {}
    for p in parameters:
        groups.setdefault((p.dim() >= 2, hasattr(p, "to_local")), []).append(p)
    groups = [{"params": some, "weight_decay": 0.1 if decays else 0.0} for (decays, _), some in groups.items()]
    if not shared_out:
        return torch.optim.AdamW(groups, **rule)
    from torch.distributed.optim import ZeroRedundancyOptimizer

    optimizer = ZeroRedundancyOptimizer(groups[0]["params"], optimizer_class=torch.optim.AdamW,
                                        weight_decay=groups[0]["weight_decay"], **rule)
    for group in groups[1:]:
        optimizer.add_param_group(group)
    return optimizer


def require_one_process_losses(losses, expected):
    for i, (loss, one) in enumerate(zip(losses, expected)):
        if abs(loss - one) > TOLERANCE * abs(one):
            raise SystemExit(f"step {i + 1} has loss {loss:.7f}; one process has {one:.7f}")


def peer(job, device, threads, world=1, expected=(), fused=False, compile=False, autocast=False, shard=None,
         micro_batches=None, sequence=None):
    """Trains as one rank of `world`; returns the seconds of each step, the memory and the first losses."""
    torch.manual_seed(1)
    on_gpu = device == "cuda"
    if not on_gpu:
        torch.set_num_threads(threads)
    if world > 1:
        dist.init_process_group("gloo")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is measured from here
    start_mib = status_mib("VmRSS")
    model = GPT(job).to(device)
    if on_gpu and not autocast:
        model = model.to(torch.bfloat16)
    params = sum(p.numel() for p in model.parameters())
    if shard == "fsdp2":
        way = fsdp2(model, world)
    elif micro_batches:
        way = pipeline(model, world, micro_batches)
    elif sequence is not None:
        way = tensor(model, world, sequence)
    elif world > 1:
        way = by_autograd(model, nn.parallel.DistributedDataParallel(model), world)
    else:
        way = by_autograd(model, torch.compile(model) if compile else model,
                          context=lambda: torch.autocast(device, torch.bfloat16, enabled=autocast))
    del model  # a pipeline stage only has its own
    optimizer = make_optimizer(way.parameters, fused, shared_out=shard == "optimizer")
    tokens, mine = torch.Generator().manual_seed(2), dist.get_rank() if way.shares > 1 else 0
    batches = [torch.randint(0, job.vocab, (job.batch, job.context + 1), generator=tokens)[mine::way.shares]
               for _ in range(8)]
    if on_gpu:
        batches = [batch.pin_memory() for batch in batches]

    def step(i):
        batch = batches[i % len(batches)].to(device, non_blocking=True)
        loss = way.backward(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
        way.clip()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    # Waits for the GPU once per window, so that its queue never runs empty within one.
    warm, window = min(5, job.steps // 2), (10 if on_gpu else 1)
    losses = torch.stack([step(i).float() for i in range(warm)])[:CHECKED].cpu()
    if world > 1:
        dist.all_reduce(losses)
    require_one_process_losses(losses.tolist(), expected)
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
    result = {"step_ms": 1e3 * statistics.median(seconds), "params": params, "host_mib": status_mib("VmHWM") - start_mib,
              "losses": losses.tolist()}
    if world > 1:
        dist.destroy_process_group()
    if on_gpu:
        result |= {"allocated_mib": torch.cuda.max_memory_allocated() / 2**20,
                   "reserved_mib": torch.cuda.max_memory_reserved() / 2**20}
    return result
