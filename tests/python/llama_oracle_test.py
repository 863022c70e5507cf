"""Echelon against Llama as transformers has it: same weights and same batch give the same loss, the same gradients and
the same training. In fp64 to 1e-10; in fp32 to 1e-5 of each gradient's norm.

Transformers computes norms and rotary angles in fp32 whatever the model's type; for the comparison in fp64 both are
replaced here by the same formulas in fp64. Nothing is replaced for the comparison in fp32.
"""

import math

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from oracle_case import Case, assert_all_close, part  # noqa: E402
from transformers.models.llama import modeling_llama  # noqa: E402

torch.set_num_threads(1)  # models this small only lose by more

# Sequences as long as the context, and shorter; heads of 12 and of 10.
SIZES = {
    "small": dict(num_hidden_layers=2, hidden_size=48, num_attention_heads=4, intermediate_size=80, vocab_size=97,
                  max_position_embeddings=24, rms_norm_eps=1e-5, tokens=24),
    "larger": dict(num_hidden_layers=3, hidden_size=80, num_attention_heads=8, intermediate_size=136, vocab_size=256,
                   max_position_embeddings=40, rms_norm_eps=1e-6, tokens=33),
}
# A context so short that of the wavelengths some are stretched, some are not and some are in between.
SCALED = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}

# Size, queries a key, scaled, tied.
CASES = [("small", 1, False, True), ("small", 2, True, False), ("small", 4, False, False), ("small", 4, True, True),
         ("larger", 1, True, False), ("larger", 2, False, True), ("larger", 4, True, True), ("larger", 4, False, False)]


def name_of(case):
    size, ratio, scaled, tied = case
    return f"{size}-{ratio}-{'scaled' if scaled else 'plain'}-{'tied' if tied else 'untied'}"


def make_model(size, ratio, scaled, tied):
    """Random everywhere: norms too, since ones would hide mistakes."""
    sizes = {key: value for key, value in SIZES[size].items() if key != "tokens"}
    torch.manual_seed(7)
    config = transformers.LlamaConfig(**sizes, num_key_value_heads=sizes["num_attention_heads"] // ratio,
                                      rope_parameters=dict(SCALED if scaled else PLAIN), tie_word_embeddings=tied,
                                      bos_token_id=0, eos_token_id=0, attn_implementation="sdpa")
    model = transformers.LlamaForCausalLM(config).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            offset = 1.0 if "norm" in name else 0.0
            parameter.copy_(offset + 0.1 * torch.randn_like(parameter))
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    return model


def exact_norm(self, hidden):
    variance = hidden.pow(2).mean(-1, keepdim=True)
    return self.weight * (hidden * torch.rsqrt(variance + self.variance_epsilon))


def frequencies(config):
    """By the formulas of the papers, in fp64."""
    rope, width = config.rope_parameters, config.hidden_size // config.num_attention_heads
    all_of_them = []
    for i in range(0, width, 2):
        f = rope["rope_theta"] ** (-i / width)
        if rope["rope_type"] == "llama3":
            wavelength, context = 2 * math.pi / f, rope["original_max_position_embeddings"]
            if wavelength > context / rope["low_freq_factor"]:
                f /= rope["factor"]
            elif wavelength >= context / rope["high_freq_factor"]:
                s = ((context / wavelength - rope["low_freq_factor"]) /
                     (rope["high_freq_factor"] - rope["low_freq_factor"]))
                f = (1 - s) * f / rope["factor"] + s * f
        all_of_them.append(f)
    return torch.tensor(all_of_them, dtype=torch.float64)


def exact_rotary(self, x, position_ids):
    angles = position_ids[..., None].double() * frequencies(self.config)
    both = torch.cat((angles, angles), dim=-1)
    return both.cos(), both.sin()


@pytest.fixture(scope="module", params=CASES, ids=name_of)
def case(request, tmp_path_factory):
    sizes = SIZES[request.param[0]]
    return Case(make_model(*request.param), sizes["vocab_size"], sizes["tokens"], tmp_path_factory.mktemp("case"))


@pytest.fixture
def in_fp64(monkeypatch):
    monkeypatch.setattr(modeling_llama.LlamaRMSNorm, "forward", exact_norm)
    monkeypatch.setattr(modeling_llama.LlamaRotaryEmbedding, "forward", exact_rotary)


def test_loss_and_logits_in_fp64(case, oracle, in_fp64):
    loss, logits, _ = case.reference("fp64").first_step()
    ours = case.echelon(oracle, "fp64")
    assert abs(ours["loss"].item() - loss.item()) < 1e-10
    assert (ours["logits"] - logits).abs().max().item() < 1e-10


def test_every_gradient_in_fp64(case, oracle, in_fp64):
    _, _, grads = case.reference("fp64").first_step()
    assert all(g.norm() > 1e-3 for g in grads.values()), "a gradient of this test is next to nothing"
    assert_all_close(part(case.echelon(oracle, "fp64"), "grad/"), grads, lambda g: 1e-10 * g.norm().item())


def test_parameters_after_ten_adamw_steps_in_fp64(case, oracle, in_fp64):
    losses, values = case.reference("fp64").train()
    ours = case.echelon(oracle, "fp64")
    assert (ours["losses"] - losses).abs().max().item() < 1e-10
    assert_all_close(part(ours, "value/"), values, lambda _: 1e-10)
    still = [name for name, value in values.items() if torch.equal(value, dict(case.model.named_parameters())[name])]
    assert not still, f"these did not train: {still}"


def test_transformers_frequencies_are_those_of_the_formulas(case):
    theirs = case.model.model.rotary_emb.inv_freq.double()
    assert torch.allclose(theirs, frequencies(case.model.config), rtol=1e-6)


def test_loss_and_every_gradient_in_fp32(case, oracle):
    loss, logits, grads = case.reference("fp32").first_step()
    ours = case.echelon(oracle, "fp32")
    assert abs(ours["loss"].item() - loss.item()) < 1e-5 * loss.item()
    assert (ours["logits"] - logits).norm() < 1e-5 * logits.norm()
    assert_all_close(part(ours, "grad/"), grads, lambda g: 1e-5 * g.norm().item())


def test_losses_of_ten_adamw_steps_in_fp32(case, oracle):
    losses, _ = case.reference("fp32").train()
    assert torch.allclose(case.echelon(oracle, "fp32")["losses"], losses.double(), rtol=1e-5, atol=0)


def test_micro_batches_give_the_gradients_of_the_whole_batch(case, oracle):
    whole, pieces = case.echelon(oracle, "fp64"), case.echelon(oracle, "fp64", "micro_batches=2")
    assert abs(whole["loss"].item() - pieces["loss"].item()) < 1e-12
    assert_all_close(part(pieces, "grad/"), part(whole, "grad/"), lambda g: 1e-12 * g.norm().item())
    assert_all_close(part(pieces, "value/"), part(whole, "value/"), lambda _: 1e-10)
