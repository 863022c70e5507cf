"""What suites compare Echelon's training with: a model of transformers, trained by PyTorch on one batch."""

import copy

import torch
from safetensors.torch import save_file
from torch.nn import functional as F

STEPS = 10
OPTIM = {"rate": 1e-3, "decay": 0.1, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "clip": 1.0}
OPTIM_ARGUMENTS = [f"optim.{key}={value}" for key, value in OPTIM.items()]


class Reference:
    """The same steps in PyTorch."""

    def __init__(self, model, batch):
        self.model = model
        self.batch = batch

    def loss(self):
        # Not the model's own loss: it computes in fp32 and shifts the labels once more.
        logits = self.model(self.batch["input_ids"]).logits
        return F.cross_entropy(logits.flatten(0, 1), self.batch["labels"].flatten()), logits

    def trained(self):
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def first_step(self):
        """Loss, logits and gradients at the given weights."""
        self.model.zero_grad(set_to_none=True)
        loss, logits = self.loss()
        loss.backward()
        grads = {name: parameter.grad.clone() for name, parameter in self.trained().items()}
        return loss.detach(), logits.detach(), grads

    def train(self):
        """The losses of the steps and the parameters after them."""
        trained = self.trained()
        matrices = [p for p in trained.values() if p.dim() >= 2]
        others = [p for p in trained.values() if p.dim() < 2]
        optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": OPTIM["decay"]}, {"params": others, "weight_decay": 0.0}],
            lr=OPTIM["rate"], betas=(OPTIM["beta1"], OPTIM["beta2"]), eps=OPTIM["epsilon"])
        losses, clipped = [], 0
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss, _ = self.loss()
            loss.backward()
            clipped += torch.nn.utils.clip_grad_norm_(trained.values(), OPTIM["clip"]) > OPTIM["clip"]
            optimizer.step()
            losses.append(loss.detach())
        assert 0 < clipped, "no step of this test clips"
        return torch.stack(losses), {name: p.detach().clone() for name, p in trained.items()}


class Case:
    """A model and a batch, as files for Echelon and as a Reference. Without another batch, it is of random tokens,
    and the labels are the next ones."""

    def __init__(self, model, vocab, tokens, folder, batch=None, reference=Reference):
        self.model = model
        self.model.save_pretrained(folder / "weights")
        generator = torch.Generator().manual_seed(3)
        drawn = torch.randint(0, vocab, (4, tokens + 1), generator=generator)
        self.batch = batch or {"input_ids": drawn[:, :-1].contiguous(), "labels": drawn[:, 1:].contiguous()}
        save_file(self.batch, folder / "batch.safetensors")
        self.folder = folder
        self.results = {}
        self.kind = reference

    def reference(self, precision):
        model = copy.deepcopy(self.model).to(torch.float64 if precision == "fp64" else torch.float32)
        return self.kind(model, self.batch)

    def echelon(self, oracle, precision, *options):
        key = (precision, *options)
        if key not in self.results:
            out = self.folder / ("-".join(key) + ".safetensors")
            self.results[key] = oracle(self.folder / "weights", self.folder / "batch.safetensors", precision, STEPS, out,
                                       *OPTIM_ARGUMENTS, *options)
        return self.results[key]


def part(tensors, prefix):
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def assert_all_close(ours, theirs, bound):
    """Every tensor within `bound(theirs)`; a failure shows a line for each."""
    assert sorted(ours) == sorted(theirs)
    rows, bad = [], 0
    for name in theirs:
        assert ours[name].shape == theirs[name].shape, name
        assert ours[name].dtype == theirs[name].dtype, name
        error, allowed = (ours[name] - theirs[name]).norm().item(), bound(theirs[name])
        wrong = not error <= allowed  # NaN is wrong
        bad += wrong
        rows.append(f"{'WRONG' if wrong else 'ok':5} {name:44} error {error:.2e}, allowed {allowed:.2e}, "
                    f"norm {theirs[name].norm().item():.2e}")
    assert not bad, f"{bad} of {len(rows)} tensors differ:\n" + "\n".join(rows)
