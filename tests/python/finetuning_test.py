"""Fine-tuning as docs/finetuning.md describes it: frozen layers, rates by layer, early stopping and the best weights."""

import json
import re
import shutil

import pytest
from conftest import metrics

torch = pytest.importorskip("torch")
from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

TWO = dict(model_layers=2, data_source="random", model_vocab=64, train_batch=6)
LAYOUTS = {
    "data": (2, {}),
    "zero-3": (2, dict(parallel_zero=3, zero_group=0)),
    "pipeline": (3, dict(parallel_pipeline=3, train_micro_batches=2, pipeline_balance="count")),
    "tensor": (2, dict(parallel_tensor=2)),
    "servers": (2, dict(server_count=1)),
}
LOWER = ["transformer.w*", "transformer.h.0.*"]


def weights(run, folder="weights"):
    return load_file(run / folder / "model.safetensors")


def state_names(run):
    with safe_open(run / "state.safetensors", "pt") as state:
        return set(state.keys())


def started(echelon, **settings):
    """Weights to begin with, made from another seed than the jobs'."""
    run = echelon.train_well("start", train_steps=1, train_seed=7, optim_rate=0, **TWO | settings)
    return str(run / "weights")


# ---- Freezing


@pytest.mark.parametrize("layout", LAYOUTS)
def test_frozen_parameters_stay_and_the_others_train(echelon, layout):
    ranks, options = LAYOUTS[layout]
    init = started(echelon)
    before = load_file(init + "/model.safetensors")
    settings = TWO | dict(train_freeze=LOWER, model_init=init, optim_warmup=0)
    alone = weights(echelon.train_well("alone", **settings))
    run = echelon.train_well("job", "--nproc", ranks, **settings | options)
    after = weights(run)
    assert set(after) == set(before) == set(alone)
    for name, value in after.items():
        frozen = name.startswith(("transformer.w", "transformer.h.0."))
        assert torch.equal(value, before[name]) == frozen, name
        assert torch.allclose(value, alone[name], rtol=0, atol=2e-5), name
    names = state_names(run)
    assert "fixed/transformer.wte.weight" in names and "exp_avg/transformer.wte.weight" not in names
    assert "exp_avg/transformer.h.1.ln_1.weight" in names
    memory = json.loads((run / "memory.json").read_text())
    for kind in ("gradients", "optimizer") if layout != "servers" else ():
        measured = max(rank["tensors_at_peak_bytes"][kind] for rank in memory["ranks"])
        assert measured == memory["predicted_bytes"][kind], kind


@pytest.mark.parametrize("layout", ["zero-3", "servers"])
def test_a_frozen_run_resumes_and_exports(echelon, layout):
    ranks, options = LAYOUTS[layout]
    settings = TWO | dict(train_freeze=LOWER, model_init=started(echelon)) | options
    whole = echelon.train_well("whole", "--nproc", ranks, **settings)
    run = echelon.train_well("job", "--nproc", ranks, **settings | dict(train_steps=6))
    resumed = echelon("train", "--nproc", ranks, "--resume", "runs/job", "--set", "train.steps=12")
    assert resumed.returncode == 0, resumed.stderr
    assert metrics(run) == metrics(whole)
    assert all(torch.equal(value, weights(whole)[name]) for name, value in weights(run).items())
    exported = echelon("export", "runs/job", "-o", "exported")
    assert exported.returncode == 0, exported.stderr
    ours = load_file(echelon.folder / "exported" / "model.safetensors")
    assert all(torch.equal(value, ours[name]) for name, value in weights(run).items())
    other = echelon("train", "--nproc", ranks, "--resume", "runs/job", "--set", "train.steps=14", "--set", "train.freeze=[]")
    assert other.returncode == 2 and "train.freeze" in other.stderr, other.stderr


def test_a_frozen_job_is_refused_before_anything_is_written(echelon):
    for settings, says in (
            (dict(train_freeze=["transformer.h.9.*"]), "near names are transformer.h.0.ln_1.weight"),
            (dict(train_freeze=["*"]), "freezes every parameter"),
            (dict(optim_groups=["zzz: rate=2"]), "no parameter is named zzz"),
            (dict(optim_groups=["*.bias rate=2"]), "has no colon"),
            (dict(optim_layer_decay=0), "optim.layer_decay"),
            (dict(train_stop_metric="f2", train_patience=1, train_validate_every=2),
             "train.stop_metric = f2 is no score of this job's validations, which have loss, perplexity"),
            (dict(train_patience=1), "train.validate_every"),
    ):
        for ranks in (1, 2):
            result = echelon.train("--nproc", ranks, **settings)
            assert result.returncode == 2 and says in result.stderr, result.stderr
            said = [line for line in result.stderr.splitlines() if not re.search(r": (rank \d \(pid \d+\)|all 2 ranks) exited with 2$", line)]
            assert len(said) == 1, result.stderr
    assert not (echelon.folder / "runs").exists()


# ---- Rates


def test_the_learning_rate_is_that_of_transformers_after_the_warm_up(echelon):
    transformers = pytest.importorskip("transformers")
    steps, warmup, rate = 12, 4, 3e-3
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, warmup, steps)
    theirs = []
    for _ in range(steps):
        theirs.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    run = echelon.train_well("a", train_steps=steps, optim_warmup=warmup, optim_rate=rate, optim_schedule="linear")
    ours = [line["rate"] for line in metrics(run)]
    assert ours[warmup:] == pytest.approx(theirs[warmup:], rel=1e-12)
    # Within the warm-up ours is one step ahead: theirs begins with a step at rate 0.
    assert ours[:warmup] == pytest.approx(theirs[1:warmup + 1], rel=1e-12)


def test_layers_and_groups_train_at_their_rates(echelon):
    """With SGD, the first step moves a parameter in proportion to its rate."""
    init = started(echelon)
    before = load_file(init + "/model.safetensors")
    settings = TWO | dict(model_init=init, train_steps=1, train_precision="fp64", optim_name="sgd", optim_momentum=0, optim_warmup=0,
                          optim_clip=0, optim_decay=0)
    plain = weights(echelon.train_well("plain", **settings))
    tuned = weights(echelon.train_well("tuned", **settings | dict(
        optim_layer_decay=0.5, optim_groups=["*.h.1.mlp.*: rate=10", "*.bias: rate=3"])))
    for name, value in tuned.items():
        block = re.match(r"transformer\.h\.(\d)\.", name)
        below = 2 - int(block[1]) if block else 0 if ".ln_f." in name else 3  # layers from the head down
        factor = 0.5**below * (10 if ".h.1.mlp." in name else 3 if name.endswith(".bias") else 1)
        start = before[name].double()
        assert torch.allclose(value - start, factor * (plain[name] - start), rtol=1e-9, atol=1e-15), name


# ---- Stopping early


def replayed(lines, patience):
    """The validations of a run as the rule judges them: the best step, and the step after which training ends."""
    best, since = None, 0
    for line in (line for line in lines if "val_loss" in line):
        if best is None or line["val_loss"] < best[1]:
            best, since = (line["step"], line["val_loss"]), 0
        else:
            since += 1
        if since == patience:
            return best, line["step"]
    return best, None


OVERFIT = dict(train_steps=400, train_validate_every=4, train_validate_samples=8, optim_rate=0.05, optim_warmup=0, train_patience=3,
               train_keep_best=True)


@pytest.mark.parametrize("layout", ["alone", "data", "zero-3", "pipeline", "tensor"])
def test_training_stops_when_validations_get_no_better_and_keeps_the_best(echelon, layout):
    ranks, options = (1, {}) if layout == "alone" else LAYOUTS[layout]
    settings = OVERFIT | dict(model_layers=2) | options
    result = echelon.train("--nproc", ranks, "--name", "a", "--json", "out.json", **settings)
    assert result.returncode == 0, result.stdout + result.stderr
    run = echelon.folder / "runs" / "a"
    lines = metrics(run)
    (best, loss), end = replayed(lines, 3)
    assert end is not None and 4 <= best < end < 400, "the data gave no reason to stop"
    # Rank 0's score decides on all ranks.
    tags = {entry["tag"] for entry in json.loads((run / "ledger.json").read_text())["operations"]}
    assert ("best score" in tags) == (ranks > 1)
    assert max(line["step"] for line in lines) == end
    reason = f"after step {end} of 400: 3 validations in a row without a better loss than {loss:.4f}, of step {best}"
    assert [line["stopped"] for line in lines if "stopped" in line] == [reason]
    assert [line["best"]["loss"] for line in lines if "best" in line][-1] == loss
    summary = json.loads((echelon.folder / "out.json").read_text())
    assert summary["best"] == {"step": best, "score": "loss", "value": loss} and summary["stopped"] == reason
    shown = " ".join(result.stdout.split())
    assert f"stopped {reason}" in shown and f"best loss {loss:.4f} after step {best}: runs/a/best" in shown
    # The weights of the best step are those that a run up to it ends with.
    upto = echelon.train_well("upto", "--nproc", ranks, **settings | dict(train_steps=best, train_patience=0, train_keep_best=False))
    kept = weights(run, "best")
    assert all(torch.equal(value, kept[name]) for name, value in weights(upto).items())
    assert not all(torch.equal(value, kept[name]) for name, value in weights(run).items())
    assert (run / "best" / "config.json").read_text() == (run / "weights" / "config.json").read_text()


def test_a_resumed_run_goes_on_counting(echelon):
    whole = echelon.train_well("whole", **OVERFIT)
    (best, _), end = replayed(metrics(whole), 3)
    for until in (best, best + 1, end - 4, end - 1):
        run = echelon.train_well("cut", **OVERFIT | dict(train_steps=until, train_patience=0))
        resumed = echelon("train", "--resume", "runs/cut", "--set", "train.steps=400", "--set", "train.patience=3")
        assert resumed.returncode == 0, resumed.stderr
        # The validation that ended the first part used all samples, and is not compared.
        steps = [line["step"] for line in metrics(run) if "loss" in line]
        assert steps == list(range(1, end + 1)), until
        assert weights(run, "best").keys() == weights(whole, "best").keys()
        assert all(torch.equal(value, weights(whole, "best")[name]) for name, value in weights(run, "best").items()), until
        shutil.rmtree(run)


def test_a_run_that_has_stopped_goes_on_with_more_patience_alone(echelon):
    run = echelon.train_well("a", **OVERFIT)
    _, end = replayed(metrics(run), 3)
    again = echelon("train", "--resume", "runs/a")
    assert again.returncode == 0 and re.search(rf"stopped\s+after step {end} of 400", again.stdout), again.stdout + again.stderr
    assert max(line["step"] for line in metrics(run)) == end
    more = echelon("train", "--resume", "runs/a", "--set", "train.patience=5", "--set", f"train.steps={end + 8}")
    assert more.returncode == 0, more.stderr
    assert max(line["step"] for line in metrics(run)) == end + 8


def test_equal_scores_are_no_better(echelon):
    run = echelon.train_well("a", train_steps=40, train_validate_every=3, optim_rate=0, train_patience=2)
    assert [line["step"] for line in metrics(run) if "stopped" in line] == [9]
    assert not (run / "best").exists()


def test_a_run_that_has_stopped_between_two_states_trains_no_further(echelon):
    run = echelon.train_well("a", **OVERFIT, train_save_every=7)
    _, end = replayed(metrics(run), 3)
    assert end % 7 != 0, "the data gave no reason to stop between two states"
    before = metrics(run)
    again = echelon("train", "--resume", "runs/a")
    assert again.returncode == 0 and f"after step {end}" in again.stdout, again.stdout + again.stderr
    assert [line for line in metrics(run) if "loss" in line] == [line for line in before if "loss" in line]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kept", [True, False], ids=["older state", "no weights kept before"])
def test_best_weights_are_those_of_the_reported_validation_after_a_resume(echelon, kept, ranks):
    """Whatever the state calls best: the folder is newer than it, or missing."""
    settings = dict(train_steps=18, train_save_every=10, train_validate_every=4, train_validate_samples=8, optim_rate=0.003, optim_warmup=0)
    run = echelon.train_well("a", "--nproc", ranks, **settings, train_keep_best=kept, train_patience=9)
    assert [line["step"] for line in metrics(run) if "best" in line][-1] == 16
    former = weights(run, "best") if kept else None
    # With this rate no later validation is as good as that of step 8, which the state has.
    result = echelon("train", "--nproc", ranks, "--resume", "runs/a", "--json", "out.json", "--set", "optim.rate=0.5",
                     "--set", "train.keep_best=true")
    assert result.returncode == 0, result.stderr
    best = json.loads((echelon.folder / "out.json").read_text())["best"]
    validations = {line["step"]: line["val_loss"] for line in metrics(run) if "val_loss" in line}
    assert best["step"] in (12, 16) and best["value"] == validations[best["step"]] > validations[8]
    assert json.loads((run / "best" / "validation.json").read_text()) == best
    assert "runs/a/best has those weights" in " ".join(result.stdout.split())
    assert former is None or any(not torch.equal(value, former[name]) for name, value in weights(run, "best").items())


def test_a_run_resumed_from_the_state_of_its_best_validation_keeps_it(echelon):
    settings = dict(train_validate_every=4, train_validate_samples=8, optim_rate=0.003, optim_warmup=0, train_keep_best=True)
    run = echelon.train_well("a", train_steps=8, **settings)
    kept = weights(run, "best")
    result = echelon("train", "--resume", "runs/a", "--set", "train.steps=14", "--set", "optim.rate=0.5")
    assert result.returncode == 0 and "after step 8: runs/a/best" in " ".join(result.stdout.split()), result.stdout
    assert all(torch.equal(value, kept[name]) for name, value in weights(run, "best").items())


def test_bits_per_byte_stop_a_run_as_its_loss_does(echelon):
    ends = []
    for score in ("loss", "bits_per_byte"):
        lines = metrics(echelon.train_well(score, **OVERFIT, train_stop_metric=score))
        ends.append([line["step"] for line in lines if "stopped" in line])
        assert all(score in line["best"] for line in lines if "best" in line)
    assert ends[0] == ends[1] != []
