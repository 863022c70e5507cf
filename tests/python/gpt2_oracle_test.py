"""Echelon against GPT-2 as others wrote it: same weights and same batch give the same loss, the same gradients and
the same training. In fp64 to 1e-10; in fp32 to 1e-5 of each gradient's norm."""


import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from oracle_case import Case, assert_all_close, part  # noqa: E402

torch.set_num_threads(1)  # models this small only lose by more

SIZES = {
    # Sequences as long as the context, and shorter; heads of 16 and of 12.
    "small": dict(n_layer=2, n_embd=48, n_head=3, vocab_size=97, n_positions=24, tokens=24, attn="eager"),
    "larger": dict(n_layer=3, n_embd=60, n_head=5, vocab_size=256, n_positions=40, tokens=33, attn="sdpa"),
}
CASES = [(size, tied) for size in SIZES for tied in (True, False)]


def make_model(size, tied):
    """Random everywhere: biases and norms too, since zeros and ones would hide mistakes."""
    sizes = dict(SIZES[size])
    sizes.pop("tokens")
    torch.manual_seed(7)
    config = transformers.GPT2Config(**{k: v for k, v in sizes.items() if k != "attn"}, tie_word_embeddings=tied,
                                     resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
                                     attn_implementation=sizes["attn"])
    model = transformers.GPT2LMHeadModel(config).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            offset = 1.0 if ".ln_" in name and name.endswith("weight") else 0.0
            parameter.copy_(offset + 0.1 * torch.randn_like(parameter))
    assert (model.lm_head.weight is model.transformer.wte.weight) == tied
    return model


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-{'tied' if case[1] else 'untied'}")
def case(request, tmp_path_factory):
    sizes = SIZES[request.param[0]]
    return Case(make_model(*request.param), sizes["vocab_size"], sizes["tokens"], tmp_path_factory.mktemp("case"))


def test_loss_and_logits_in_fp64(case, oracle):
    loss, logits, _ = case.reference("fp64").first_step()
    ours = case.echelon(oracle, "fp64")
    assert abs(ours["loss"].item() - loss.item()) < 1e-10
    assert (ours["logits"] - logits).abs().max().item() < 1e-10


def test_every_gradient_in_fp64(case, oracle):
    _, _, grads = case.reference("fp64").first_step()
    assert all(g.norm() > 1e-3 for g in grads.values()), "a gradient of this test is next to nothing"
    assert_all_close(part(case.echelon(oracle, "fp64"), "grad/"), grads, lambda g: 1e-10 * g.norm().item())


def test_parameters_after_ten_adamw_steps_in_fp64(case, oracle):
    losses, values = case.reference("fp64").train()
    ours = case.echelon(oracle, "fp64")
    assert (ours["losses"] - losses).abs().max().item() < 1e-10
    assert_all_close(part(ours, "value/"), values, lambda _: 1e-10)
    still = [name for name, value in values.items() if torch.equal(value, dict(case.model.named_parameters())[name])]
    assert not still, f"these did not train: {still}"


def test_loss_and_every_gradient_in_fp32(case, oracle):
    loss, logits, grads = case.reference("fp32").first_step()
    ours = case.echelon(oracle, "fp32")
    assert abs(ours["loss"].item() - loss.item()) < 1e-5 * loss.item()
    assert (ours["logits"] - logits).norm() < 1e-5 * logits.norm()
    assert_all_close(part(ours, "grad/"), grads, lambda g: 1e-5 * g.norm().item())


def test_losses_of_ten_adamw_steps_in_fp32(case, oracle):
    # Losses only: the gradient of the key bias is nothing but rounding, and Adam scales it up.
    losses, _ = case.reference("fp32").train()
    assert torch.allclose(case.echelon(oracle, "fp32")["losses"], losses.double(), rtol=1e-5, atol=0)


def test_micro_batches_give_the_gradients_of_the_whole_batch(case, oracle):
    whole, pieces = case.echelon(oracle, "fp64"), case.echelon(oracle, "fp64", "micro_batches=2")
    assert abs(whole["loss"].item() - pieces["loss"].item()) < 1e-12
    assert_all_close(part(pieces, "grad/"), part(whole, "grad/"), lambda g: 1e-12 * g.norm().item())
    assert_all_close(part(pieces, "value/"), part(whole, "value/"), lambda _: 1e-10)
