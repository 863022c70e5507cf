"""GPT-2 and its training written from the formulas, in PyTorch and in fp64: what Echelon's losses and weights are
compared with.

Nothing here calls Echelon. The model is Radford et al.'s as Hugging Face lays its weights out; the update rules are
those of the papers (AdamW, SGD with momentum, LARS, LAMB); samples and dropout masks are drawn as docs/recompute.md
and echelon/base/random.h say: Philox4x32-10 of a key that is made of the seed and a purpose.
"""

import math
from dataclasses import dataclass

import numpy
import torch

# ---- Random numbers: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011

MASK32 = 0xFFFFFFFF


def philox(key, counter, stream):
    """Four words of 32 bits. The counter may be an array: then each word is one."""
    low = numpy.uint64(MASK32)
    counter = numpy.asarray(counter, dtype=numpy.uint64)
    c0, c1 = counter & low, counter >> numpy.uint64(32)
    c2 = numpy.full_like(counter, stream & MASK32)
    c3 = numpy.full_like(counter, stream >> 32)
    k0, k1 = key & MASK32, key >> 32
    for _ in range(10):
        product0, product1 = numpy.uint64(0xD2511F53) * c0, numpy.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = ((product1 >> numpy.uint64(32)) ^ c1 ^ numpy.uint64(k0), product1 & low,
                          (product0 >> numpy.uint64(32)) ^ c3 ^ numpy.uint64(k1), product0 & low)
        k0, k1 = (k0 + 0x9E3779B9) & MASK32, (k1 + 0xBB67AE85) & MASK32
    return c0, c1, c2, c3


def stream_of(word):
    return int.from_bytes(word.encode().ljust(8, b"\0"), "big")


def derive_key(seed, purpose):
    digest = 0xCBF29CE484222325  # FNV-1a
    for byte in purpose.encode():
        digest = (digest ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    first, second, _, _ = philox(seed, digest, stream_of("derive"))
    return int(second) << 32 | int(first)


def permute(key, position, n):
    """Where `position` goes in a permutation of n: eight Feistel rounds over the smallest 4^h >= n, walked until below n."""
    if n == 1:
        return 0
    half = ((n - 1).bit_length() + 1) // 2
    mask = (1 << half) - 1
    value = position
    while True:
        left, right = value >> half, value & mask
        for turn in range(8):
            left, right = right, left ^ int(philox(key, right, stream_of("permute") + turn)[0]) & mask
        value = left << half | right
        if value < n:
            return value


def sample_of(seed, drawn, samples):
    """The sample that is drawn as number `drawn` since the first step: a new order every epoch."""
    key = derive_key(seed, f"sample order of epoch {drawn // samples}")
    return permute(key, drawn % samples, samples)


# ---- The model


@dataclass(frozen=True)
class Model:
    layers: int
    width: int
    heads: int
    context: int
    tied: bool = True
    vocab: int = 256
    dropout: float = 0.0


def first_weights(model, seed):
    """Values that fp32 holds exactly. Norms and biases are not their usual ones and zeros, so that all of them matter."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape, mean=0.0, deviation=0.08):
        return (mean + deviation * torch.randn(*shape, generator=draw)).double()

    width = model.width
    weights = {"transformer.wte.weight": normal(model.vocab, width), "transformer.wpe.weight": normal(model.context, width)}
    for i in range(model.layers):
        h = f"transformer.h.{i}."
        for norm in ("ln_1", "ln_2"):
            weights[f"{h}{norm}.weight"], weights[f"{h}{norm}.bias"] = normal(width, mean=1.0), normal(width)
        for name, rows, columns in (("attn.c_attn", width, 3 * width), ("attn.c_proj", width, width),
                                    ("mlp.c_fc", width, 4 * width), ("mlp.c_proj", 4 * width, width)):
            weights[f"{h}{name}.weight"], weights[f"{h}{name}.bias"] = normal(rows, columns), normal(columns)
    weights["transformer.ln_f.weight"], weights["transformer.ln_f.bias"] = normal(width, mean=1.0), normal(width)
    if not model.tied:
        weights["lm_head.weight"] = normal(model.vocab, width)
    return weights


def layer_norm(x, weight, bias):
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + 1e-5) * weight + bias


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


def attention(x, weight, bias, heads):
    batch, length, width = x.shape
    q, k, v = ((x @ weight + bias).view(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4))
    scores = q @ k.transpose(-1, -2) / math.sqrt(width // heads)
    scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -math.inf)
    return (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(batch, length, width)


class Dropout:
    """Element i of the global batch stays where word i of the place's stream is at least share * 2^32."""

    def __init__(self, share, seed, step):
        self.share, self.seed, self.step = share, seed, step

    def __call__(self, x, place):
        if self.share == 0:
            return x
        blocks = -(-x.numel() // 4)
        words = philox(derive_key(self.seed, f"dropout {place}"), numpy.arange(blocks, dtype=numpy.uint64), self.step)
        stays = numpy.stack(words, 1).reshape(-1)[:x.numel()] >= round(self.share * 2 ** 32)
        return x * torch.from_numpy(stays).view(x.shape) / (1 - self.share)


def loss_of(model, w, tokens, targets, drop):
    x = drop(w["transformer.wte.weight"][tokens] + w["transformer.wpe.weight"][:tokens.shape[1]], "transformer.drop")
    for i in range(model.layers):
        h = f"transformer.h.{i}."
        a = layer_norm(x, w[h + "ln_1.weight"], w[h + "ln_1.bias"])
        a = attention(a, w[h + "attn.c_attn.weight"], w[h + "attn.c_attn.bias"], model.heads)
        x = x + drop(a @ w[h + "attn.c_proj.weight"] + w[h + "attn.c_proj.bias"], h + "attn")
        m = layer_norm(x, w[h + "ln_2.weight"], w[h + "ln_2.bias"])
        m = gelu(m @ w[h + "mlp.c_fc.weight"] + w[h + "mlp.c_fc.bias"])
        x = x + drop(m @ w[h + "mlp.c_proj.weight"] + w[h + "mlp.c_proj.bias"], h + "mlp")
    x = layer_norm(x, w["transformer.ln_f.weight"], w["transformer.ln_f.bias"])
    logits = x @ w["transformer.wte.weight" if model.tied else "lm_head.weight"].T
    chosen = logits.gather(-1, targets[..., None])[..., 0]
    return (torch.logsumexp(logits, -1) - chosen).mean()


# ---- The update


@dataclass(frozen=True)
class Optimiser:
    name: str = "adamw"
    rate: float = 1e-2
    schedule: str = "constant"
    warmup: int = 0
    final_rate: float = 0.0
    decay: float = 0.1
    clip: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    momentum: float = 0.9
    nesterov: bool = False
    trust: float = 1e-3

    def rate_at(self, step, steps):
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        done = min(1.0, (step - self.warmup) / max(1, steps - self.warmup))
        share = {"constant": 1, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}[self.schedule]
        return self.rate * (self.final_rate + (1 - self.final_rate) * share)

    def update(self, w, g, state, rate, t):
        """The new value of one parameter. Matrices decay, vectors do not."""
        decay = self.decay if w.dim() == 2 else 0
        zero = torch.zeros_like(w)
        if self.name in ("adamw", "lamb"):
            m = state["m"] = self.beta1 * state.get("m", zero) + (1 - self.beta1) * g
            v = state["v"] = self.beta2 * state.get("v", zero) + (1 - self.beta2) * g * g
            u = m / (1 - self.beta1 ** t) / (torch.sqrt(v / (1 - self.beta2 ** t)) + self.epsilon)
            if self.name == "adamw":  # Loshchilov and Hutter, 2019
                return w - rate * decay * w - rate * u
            u = u + decay * w  # You et al., 2020
            ratio = float(w.norm() / u.norm()) if w.norm() > 0 and u.norm() > 0 else 1.0
            return w - rate * ratio * u
        if self.name == "sgd":
            g = g + decay * w
            u = state["u"] = self.momentum * state.get("u", zero) + g
            return w - rate * (g + self.momentum * u if self.nesterov else u)
        # LARS: You, Gitman and Ginsburg, 2017
        local = float(self.trust * w.norm() / (g.norm() + decay * w.norm())) if w.norm() > 0 and g.norm() > 0 else 1.0
        u = state["u"] = self.momentum * state.get("u", zero) + rate * local * (g + decay * w)
        return w - u


# ---- Training


@dataclass(frozen=True)
class Problem:
    """All that decides on the numbers of a run; how it is laid over ranks does not."""

    model: Model
    optimiser: Optimiser
    text: bytes
    weights_seed: int
    seed: int
    steps: int
    batch: int


@dataclass(frozen=True)
class Solution:
    losses: list
    norms: list  # of the gradients, before clipping
    weights: dict


def train(problem):
    model, optimiser = problem.model, problem.optimiser
    length = model.context
    samples = (len(problem.text) - 1) // length
    w = first_weights(model, problem.weights_seed)
    states = {name: {} for name in w}
    losses, norms = [], []
    for step in range(problem.steps):
        drawn = range(step * problem.batch, (step + 1) * problem.batch)
        starts = [sample_of(problem.seed, n, samples) * length for n in drawn]
        windows = torch.tensor([list(problem.text[at:at + length + 1]) for at in starts])
        w = {name: value.requires_grad_() for name, value in w.items()}
        drop = Dropout(model.dropout, problem.seed, step)
        loss = loss_of(model, w, windows[:, :-1], windows[:, 1:], drop)
        grads = dict(zip(w, torch.autograd.grad(loss, list(w.values()))))
        with torch.no_grad():
            norm = math.sqrt(sum(float(g.square().sum()) for g in grads.values()))
            factor = min(1.0, optimiser.clip / (norm + 1e-6)) if optimiser.clip > 0 else 1.0
            rate = optimiser.rate_at(step, problem.steps)
            w = {name: optimiser.update(value.detach(), grads[name] * factor, states[name], rate, step + 1)
                 for name, value in w.items()}
        losses.append(float(loss.detach()))
        norms.append(norm)
    return Solution(losses, norms, w)
