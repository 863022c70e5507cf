"""Sixty random layouts against a GPT-2 in PyTorch and fp64 that shares nothing with Echelon (layout_sweep.py)."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")

import gpt2_reference
import layout_sweep


def test_random_layouts_train_what_the_reference_trains(tmp_path):
    work = layout_sweep.sweep("1", range(60), tmp_path)
    assert not work.wrong, "\n\n".join(work.wrong)
    assert not layout_sweep.missed(work), "\n".join(layout_sweep.missed(work))


def test_layouts_that_are_refused_or_never_drawn_are_seen(tmp_path):
    """A change that refuses a strategy, or a draw that leaves one out, does not pass as sixty layouts that agree."""
    work = layout_sweep.Sweep("1", tmp_path)
    work.done = [layout_sweep.draw_layout("1", number, 0, work.problems) for number in range(60)]
    assert layout_sweep.missed(work) == []
    work.refused = ["echelon: error: no"] * 20
    assert [line for line in layout_sweep.missed(work) if line.startswith("20 of 80 layouts were refused")]
    work.refused = []
    for what in layout_sweep.LEAST:
        work.done = [layout for layout in work.done if what not in layout_sweep.strategies(layout, work.problems[layout.problem])]
        assert f"{what}: 0 layouts" in "\n".join(layout_sweep.missed(work))
        work.done = [layout_sweep.draw_layout("1", number, 0, work.problems) for number in range(60)]


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


def test_a_refusal_of_what_should_run_is_seen(tmp_path):
    work = layout_sweep.Sweep("1", tmp_path)
    layout = layout_sweep.draw_layout("1", 0, 0, work.problems)
    layout.settings["pipeline.chunks"] = 2  # stands for a layout that a change refuses
    (tmp_path / "job").mkdir()
    layout_sweep.write_problem(tmp_path / "job", work.problems[layout.problem])
    with pytest.raises(layout_sweep.Failed, match="it should run, and was refused: echelon: error: pipeline.schedule"):
        work.train(tmp_path / "job", layout, work.problems[layout.problem])


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
