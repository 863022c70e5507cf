"""fp16 as a user meets it: what a run shows and writes of its loss scale, how it goes on and how it ends."""

import json

import pytest
from conftest import metrics

FP16 = dict(train_precision="fp16", train_loss_scale=16777216, train_scale_growth=3, train_steps=24)


def test_a_run_tells_of_its_loss_scale(echelon):
    result = echelon.train("--name", "half", "--json", "end.json", **FP16)
    assert result.returncode == 0, result.stdout + result.stderr
    steps = [line for line in metrics(echelon.folder / "runs" / "half") if "loss" in line]
    scales = [line["loss_scale"] for line in steps]
    assert scales[0] == 16777216
    for line, following in zip(steps, steps[1:]):
        if line.get("skipped"):
            assert line["grad_norm"] is None and following["loss_scale"] == line["loss_scale"] / 2
        else:
            assert line["grad_norm"] > 0 and following["loss_scale"] in (line["loss_scale"], 2 * line["loss_scale"])
    skipped = sum(line.get("skipped", False) for line in steps)
    assert 0 < skipped < len(steps)
    assert f"loss scale  {scales[-1]:.0f} at the end; {skipped} of 24 steps skipped" in result.stdout
    end = json.loads((echelon.folder / "end.json").read_text())
    assert (end["precision"], end["skipped_steps"], end["loss_scale"]) == ("fp16", skipped, scales[-1])


@pytest.mark.parametrize("options", [(), ("--nproc", 2)], ids=["one process", "two ranks"])
def test_a_resumed_run_goes_on_with_its_scale(echelon, options):
    whole = echelon.train_well("whole", *options, **FP16)
    part = echelon.train_well("part", *options, **(FP16 | dict(train_save_every=10)))
    # The state after step 20, in the middle of growing.
    result = echelon("train", "--resume", part, *options)
    assert result.returncode == 0, result.stdout + result.stderr
    steps = lambda run: [line for line in metrics(run) if "loss" in line]  # noqa: E731
    assert steps(part) == steps(whole)
    name = "weights/model.safetensors"
    assert (part / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.parametrize("settings, why", [
    (dict(train_precision="fp16", server_count=1), "parameter servers have none"),
    (dict(train_precision="fp16", sync_allow_staleness=2), "parameter servers have none"),
    (dict(train_precision="bf16", train_reduce="fp32", server_count=1), "for ranks that reduce among themselves"),
    (dict(train_precision="fp32", train_reduce="fp32"), "set train.precision=bf16 or fp16"),
    (dict(train_precision="fp16", train_loss_scale=0.5), "train.loss_scale"),
])
def test_what_cannot_work_is_refused_in_a_sentence(echelon, settings, why):
    result = echelon.train("--nproc", 2, **settings)
    assert result.returncode == 2, result.stdout + result.stderr
    assert why in result.stderr and result.stderr.count("\n") <= 2, result.stderr
