"""fp16 training against PyTorch: a GPT-2 in half precision with fp32 masters and torch.amp.GradScaler, on the same
weights and batch. The loss scale goes the same way step by step, through forced overflows and growth."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from safetensors.torch import save_file  # noqa: E402
from torch.nn import functional as F  # noqa: E402

torch.set_num_threads(1)

STEPS = 30
OPTIM = {"rate": 1e-3, "decay": 0.1, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "clip": 1.0}
SCALINGS = {
    # From far too high, growing into overflow again and again; and where nothing overflows.
    "overflows": {"loss_scale": 2.0**24, "scale_growth": 4},
    "grows": {"loss_scale": 64.0, "scale_growth": 3},
    "odd": {"loss_scale": 3000000.0, "scale_growth": 5},
}


class Reference:
    def __init__(self, model, batch, loss_scale, scale_growth):
        self.half = model.half()
        self.masters = {name: p.detach().float() for name, p in model.named_parameters()}
        self.batch = batch
        self.scaler = torch.amp.GradScaler("cpu", init_scale=loss_scale, growth_interval=scale_growth)

    def load(self, weights):
        """fp32 masters that are not rounded to fp16 first."""
        self.masters = {name: w.clone().requires_grad_() for name, w in weights.items()}

    def train(self):
        matrices = [p for p in self.masters.values() if p.dim() >= 2]
        others = [p for p in self.masters.values() if p.dim() < 2]
        optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": OPTIM["decay"]}, {"params": others, "weight_decay": 0.0}],
            lr=OPTIM["rate"], betas=(OPTIM["beta1"], OPTIM["beta2"]), eps=OPTIM["epsilon"])
        losses, scales, skipped = [], [], []
        for _ in range(STEPS):
            with torch.no_grad():
                for name, p in self.half.named_parameters():
                    p.copy_(self.masters[name])
            self.half.zero_grad(set_to_none=True)
            logits = self.half(self.batch["input_ids"]).logits
            loss = F.cross_entropy(logits.flatten(0, 1).float(), self.batch["labels"].flatten())
            scale = self.scaler.get_scale()
            self.scaler.scale(loss).backward()
            for name, p in self.half.named_parameters():
                self.masters[name].grad = p.grad.float()
            self.scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(self.masters.values(), OPTIM["clip"])
            self.scaler.step(optimizer)
            self.scaler.update()
            losses.append(loss.detach().double())
            scales.append(scale)
            skipped.append(self.scaler.get_scale() < scale)
        return torch.stack(losses), scales, skipped


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    folder = tmp_path_factory.mktemp("precision")
    torch.manual_seed(7)
    config = transformers.GPT2Config(n_layer=2, n_embd=48, n_head=3, vocab_size=97, n_positions=24, resid_pdrop=0.0,
                                     embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
                                     attn_implementation="eager")
    model = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            offset = 1.0 if ".ln_" in name and name.endswith("weight") else 0.0
            parameter.copy_(offset + 0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder / "weights")
    drawn = torch.randint(0, 97, (4, 25), generator=torch.Generator().manual_seed(3))
    batch = {"input_ids": drawn[:, :-1].contiguous(), "labels": drawn[:, 1:].contiguous()}
    save_file(batch, folder / "batch.safetensors")
    return folder, model, batch


@pytest.mark.parametrize("scaling", SCALINGS)
def test_the_scale_and_the_losses_are_those_of_grad_scaler(case, oracle, scaling):
    folder, model, batch = case
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    twin = transformers.GPT2LMHeadModel(model.config)
    reference = Reference(twin, batch, **SCALINGS[scaling])
    reference.load(weights)
    losses, scales, skipped = reference.train()
    ours = oracle(folder / "weights", folder / "batch.safetensors", "fp16", STEPS, folder / f"{scaling}.safetensors",
                  *[f"optim.{key}={value}" for key, value in OPTIM.items()],
                  *[f"{key}={value}" for key, value in SCALINGS[scaling].items()])
    assert ours["scales"].tolist() == scales
    assert [bool(s) for s in ours["skipped"].tolist()] == skipped
    grew = [b > a for a, b in zip(scales, scales[1:])]
    assert any(grew) and (scaling == "grows" or any(skipped)), "this test does not reach both directions"
    # fp16 rounds at 2^-11 of a number; both round, in other orders.
    assert torch.allclose(ours["losses"], losses, rtol=2e-3, atol=0), (ours["losses"], losses)
    assert ours["losses"][-1] < ours["losses"][0] - 0.1, "nothing was learnt"
