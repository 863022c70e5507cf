"""LoRA in Echelon against models of transformers with the adaptation written out in this file: the same weights, the
same adapter and the same batch give the same loss, the same gradients of A, B and a trained head, and the same
training; fp64 to 1e-10, fp32 to 1e-5. The adapter is read from a folder as PEFT writes it."""

import copy
import json

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
import llama_oracle_test  # noqa: E402
from bert_oracle_test import EncoderReference, make_batch, make_model  # noqa: E402
from llama_oracle_test import in_fp64  # noqa: E402, F401
from oracle_case import Case, Reference, assert_all_close, part  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

torch.set_num_threads(1)  # models this small only lose by more

RANK, ALPHA = 3, 7.5
PREFIX = "base_model.model."

# The matrices that are adapted, by the ends of their names, and whole modules that are trained.
ATTENTION = {"gpt2": ["attn.c_attn"], "llama": ["q_proj", "v_proj"], "bert": ["query", "value"],
             "distilbert": ["q_lin", "v_lin"]}
ALL = {"gpt2": ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"],
       "llama": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
       "bert": ["query", "key", "value", "attention.output.dense", "intermediate.dense", "output.dense"],
       "distilbert": ["q_lin", "k_lin", "v_lin", "out_lin", "lin1", "lin2"]}
HEADS = {"bert": ["classifier", "pooler"], "distilbert": ["classifier", "pre_classifier"]}


class Adapted(torch.nn.Module):
    """A frozen product, of torch's Linear or of transformers' Conv1D, plus alpha / rank (x A) B."""

    def __init__(self, frozen):
        super().__init__()
        self.frozen = frozen
        transposed = isinstance(frozen, torch.nn.Linear)
        out, width = frozen.weight.shape if transposed else frozen.weight.shape[::-1]
        self.lora_A = torch.nn.Parameter(torch.randn(RANK, width) / width**0.5)
        # Not zero, which would hide A's gradient; large enough for the gradients to be clipped.
        size = 0.2 if transposed else 0.5
        self.lora_B = torch.nn.Parameter(size * torch.randn(out, RANK))

    def forward(self, x):
        return self.frozen(x) + ALPHA / RANK * (x @ self.lora_A.t()) @ self.lora_B.t()


def ends_with(name, endings):
    return any(name == one or name.endswith("." + one) for one in endings)


def adapted(model, matrices, heads):
    """A copy with everything frozen but the adaptations and the heads."""
    model = copy.deepcopy(model).requires_grad_(False)
    torch.manual_seed(11)
    for name, module in list(model.named_modules()):
        if ends_with(name, matrices):
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, Adapted(module).to(module.weight.dtype))
        elif ends_with(name, heads):
            module.requires_grad_(True)
    return model


def in_file(name):
    return PREFIX + name + (".weight" if name.endswith(("lora_A", "lora_B")) else "")


class LoraReference(Reference):
    def trained(self):
        return {in_file(name): p for name, p in super().trained().items()}


class LoraEncoderReference(LoraReference, EncoderReference):
    pass


def write_adapter(model, folder, base, name, matrices, heads):
    folder.mkdir()
    save_file({name: p.detach().contiguous() for name, p in LoraReference(model, None).trained().items()},
              folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "SEQ_CLS" if heads else "CAUSAL_LM", "base_model_name_or_path": str(base),
        "r": RANK, "lora_alpha": ALPHA, "lora_dropout": 0.0, "target_modules": matrices, "bias": "none",
        "modules_to_save": heads or None, "fan_in_fan_out": name == "gpt2", "use_dora": False, "rank_pattern": {}}))


def base_model(name):
    if name == "llama":  # two queries share a key and a value
        return llama_oracle_test.make_model("small", 2, True, False)
    if name != "gpt2":
        return make_model("small", name, "classify")
    torch.manual_seed(7)
    config = transformers.GPT2Config(n_layer=2, n_embd=48, n_head=4, vocab_size=97, n_positions=32, attn_pdrop=0.0,
                                     embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config).double()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            norm = "ln_" in parameter_name and parameter_name.endswith("weight")
            parameter.copy_((1.0 if norm else 0.0) + 0.1 * torch.randn_like(parameter))
    return model


class LoraCase(Case):
    """The case's folder is the adapter's, whose config names the base."""

    def __init__(self, name, matrices, tmp_path):
        base = base_model(name)
        heads = HEADS.get(name, [])
        super().__init__(base, 97, 16, tmp_path, make_batch("small", name, "classify") if heads else None,
                         LoraEncoderReference if heads else LoraReference)
        (tmp_path / "weights").rename(tmp_path / "base")
        self.base = base
        self.model = adapted(base, matrices, heads)
        write_adapter(self.model, tmp_path / "weights", tmp_path / "base", name, matrices, heads)


CASES = [(name, kind) for name in ATTENTION for kind in ("attention", "all")]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(case))
def case(request, tmp_path_factory):
    name, kind = request.param
    return LoraCase(name, {"attention": ATTENTION, "all": ALL}[kind][name], tmp_path_factory.mktemp("case"))


def test_loss_and_every_gradient_in_fp64(case, oracle, in_fp64):  # noqa: F811
    loss, logits, grads = case.reference("fp64").first_step()
    ours = case.echelon(oracle, "fp64")
    assert abs(ours["loss"].item() - loss.item()) < 1e-10
    assert all(g.norm() > 1e-5 for g in grads.values()), "a gradient is next to nothing"
    assert_all_close(part(ours, "grad/"), grads, lambda g: 1e-10 * g.norm().item())
    if "mask" not in case.batch:
        assert (ours["logits"] - logits).abs().max().item() < 1e-10


def test_loss_and_every_gradient_in_fp32(case, oracle):
    loss, _, grads = case.reference("fp32").first_step()
    ours = case.echelon(oracle, "fp32")
    assert abs(ours["loss"].item() - loss.item()) < 1e-5 * loss.item()
    assert_all_close(part(ours, "grad/"), grads, lambda g: 1e-5 * g.norm().item())


def test_parameters_after_ten_adamw_steps_in_fp64(case, oracle, in_fp64):  # noqa: F811
    losses, values = case.reference("fp64").train()
    ours = case.echelon(oracle, "fp64")
    assert (ours["losses"] - losses).abs().max().item() < 1e-10
    assert_all_close(part(ours, "value/"), values, lambda _: 1e-10)


@pytest.mark.parametrize("pieces", [2, 3])
def test_micro_batches_give_the_gradients_of_the_whole_batch(case, oracle, pieces):
    whole, cut = case.echelon(oracle, "fp64"), case.echelon(oracle, "fp64", f"micro_batches={pieces}")
    assert abs(whole["loss"].item() - cut["loss"].item()) < 1e-12
    assert_all_close(part(cut, "grad/"), part(whole, "grad/"), lambda g: 1e-11 * g.norm().item() + 1e-15)
