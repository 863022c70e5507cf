"""Sixty random layouts against a GPT-2 in PyTorch and fp64 that shares nothing with Echelon (layout_sweep.py)."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")

import gpt2_reference
import layout_sweep


def test_random_layouts_train_what_the_reference_trains(tmp_path):
    wrong, _ = layout_sweep.sweep("1", range(60), tmp_path)
    assert not wrong, "\n\n".join(wrong)


def test_a_wrong_result_is_seen(tmp_path):
    """The comparison can fail: a reference that differs by one part in a thousand million does not agree."""
    work = layout_sweep.Sweep("1", tmp_path)
    layout = work.run(0)
    right = work.solutions[layout.problem]
    name = sorted(right.weights)[0]
    weights = right.weights | {name: right.weights[name] * (1 + 1e-9)}
    for spoiled in (gpt2_reference.Solution(right.losses, right.norms, weights),
                    gpt2_reference.Solution([loss + 1e-9 for loss in right.losses], right.norms, right.weights),
                    gpt2_reference.Solution(right.losses, [norm * (1 + 1e-8) for norm in right.norms], right.weights)):
        work.solutions[layout.problem] = spoiled
        with pytest.raises(layout_sweep.Failed, match="is wrong"):
            work.run(0)


def test_the_reference_is_transformers_gpt2():
    """Loss and gradients of the formulas, beside those of another implementation."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    for tied in (True, False):
        model = gpt2_reference.Model(layers=2, width=12, heads=3, context=9, tied=tied)
        weights = gpt2_reference.first_weights(model, 5)
        other = transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=256, n_positions=9, n_embd=12, n_layer=2, n_head=3, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
            tie_word_embeddings=tied)).double()
        other.load_state_dict(weights | ({"lm_head.weight": weights["transformer.wte.weight"]} if tied else {}))
        tokens = torch.randint(256, (3, 10), generator=torch.Generator().manual_seed(1))
        theirs = torch.nn.functional.cross_entropy(other(tokens[:, :-1]).logits.reshape(-1, 256), tokens[:, 1:].reshape(-1))
        theirs.backward()
        values = {name: value.requires_grad_() for name, value in weights.items()}
        ours = gpt2_reference.loss_of(model, values, tokens[:, :-1], tokens[:, 1:], gpt2_reference.Dropout(0, 0, 0))
        ours.backward()
        assert abs(float(ours.detach()) - float(theirs.detach())) < 1e-12
        for name, parameter in other.named_parameters():
            assert (values[name].grad - parameter.grad).abs().max() < 1e-12, name
