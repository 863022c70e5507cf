"""Weights in Hugging Face's GPT-2 format, both ways: what a run writes opens in transformers, what transformers
writes starts a run, and both give the same logits."""

import json
import re
import shutil
import signal
import time
import tomllib

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from safetensors.torch import load_file, save_file  # noqa: E402

torch.set_num_threads(1)

# Sizes that differ from Echelon's defaults and from the suites' tiny model, so that they can only come from the folder.
SIZES = dict(n_layer=2, n_embd=48, n_head=3, vocab_size=300, n_positions=24)
FROM_FOLDER = dict(model_layers=None, model_width=None, model_heads=None, model_context=None)
DEFAULTS_OF_LLAMA = {"kv_heads": 0, "ffn": 0, "norm_epsilon": 1e-5, "rope_base": 10000.0, "rope_factor": 1.0,
                     "rope_low": 1.0, "rope_high": 4.0, "rope_context": 8192}


def save_model(folder, model_class=transformers.GPT2LMHeadModel, tied=True, **sizes):
    torch.manual_seed(5)
    config = transformers.GPT2Config(**(SIZES | sizes), tie_word_embeddings=tied, bos_token_id=0, eos_token_id=0,
                                     resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, echelon_tokeniser="bytes")
    model = model_class(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model


def logits_of(oracle, weights, scratch, vocab, tokens):
    """What Echelon and what transformers make of a folder of weights."""
    batch = torch.randint(0, vocab, (2, tokens + 1), generator=torch.Generator().manual_seed(9))
    ids = batch[:, :-1].contiguous()
    save_file({"input_ids": ids, "labels": batch[:, 1:].contiguous()}, scratch / "batch.safetensors")
    ours = oracle(weights, scratch / "batch.safetensors", "fp64", 0, scratch / "out.safetensors")["logits"]
    model = transformers.GPT2LMHeadModel.from_pretrained(weights, dtype=torch.float64).eval()
    with torch.no_grad():
        return ours, model(ids).logits


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_run_leaves_weights_that_transformers_loads(echelon, oracle, tmp_path, tied):
    run = echelon.train_well("a", model_tied=tied)
    model, report = transformers.GPT2LMHeadModel.from_pretrained(run / "weights", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    assert (model.lm_head.weight is model.transformer.wte.weight) == tied
    ours, theirs = logits_of(oracle, run / "weights", tmp_path, vocab=256, tokens=32)
    assert (ours - theirs).abs().max() < 1e-10
    assert theirs.std() > 0.01, "the model says nothing"


@pytest.mark.parametrize("precision", ["fp64", "bf16"])
def test_weights_are_written_in_the_precision_of_the_masters(echelon, precision):
    run = echelon.train_well("a", train_precision=precision, train_steps=2)
    types = {t.dtype for t in load_file(run / "weights" / "model.safetensors").values()}
    assert types == {torch.float64 if precision == "fp64" else torch.float32}
    assert transformers.GPT2LMHeadModel.from_pretrained(run / "weights").config.n_embd == 32


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_run_starts_from_a_folder_of_transformers(echelon, oracle, tmp_path, tied):
    save_model(tmp_path / "hf", tied=tied)
    # With a rate of zero nothing but the weights that were read can be written.
    run = echelon.train_well("a", **FROM_FOLDER, model_init="hf", train_steps=2, optim_rate=0, model_dropout=0.2,
                             model_recompute="full")
    config = tomllib.loads((run / "config.toml").read_text())["model"]
    config = {key: value for key, value in config.items() if not isinstance(value, dict)}  # without [model.bert], [model.lora]
    assert config == DEFAULTS_OF_LLAMA | {
        "family": "gpt2", "layers": 2, "width": 48, "heads": 3, "vocab": 300, "context": 24, "tied": tied, "dropout": 0.2,
        "recompute": "full", "init": str(tmp_path / "hf")}, "sizes are the folder's, how to train is the user's"
    written = transformers.GPT2LMHeadModel.from_pretrained(run / "weights").config
    assert (written.embd_pdrop, written.resid_pdrop, written.attn_pdrop) == (0.2, 0.2, 0.0)
    before, after = load_file(tmp_path / "hf" / "model.safetensors"), load_file(run / "weights" / "model.safetensors")
    assert sorted(before) == sorted(after)
    for name in before:
        assert torch.equal(before[name], after[name]), name
    ours, theirs = logits_of(oracle, tmp_path / "hf", tmp_path, vocab=300, tokens=24)
    assert (ours - theirs).abs().max() < 1e-10


def test_a_run_starts_from_the_bare_model_too(echelon, tmp_path):
    model = save_model(tmp_path / "hf", model_class=transformers.GPT2Model)
    names = list(load_file(tmp_path / "hf" / "model.safetensors"))
    assert not any(name.startswith("transformer.") for name in names)
    run = echelon.train_well("a", **FROM_FOLDER, model_init="hf", train_steps=1, optim_rate=0)
    after = load_file(run / "weights" / "model.safetensors")
    for name, value in model.state_dict().items():
        assert torch.equal(after["transformer." + name], value), name


def test_a_run_goes_on_from_the_weights_of_another(echelon):
    first = echelon.train_well("a", train_steps=40, optim_rate=1e-2)
    second = echelon.train_well("b", model_init=first / "weights", train_steps=2)
    losses = [json.loads(line)["loss"] for run in (first, second)
              for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert losses[0] > 5 and losses[40] < losses[0] - 1, losses[::10]


@pytest.mark.parametrize("key, value", [("model.layers", 3), ("model.width", 96), ("model.heads", 4), ("model.vocab", 256),
                                        ("model.context", 32), ("model.tied", "false")])
def test_a_given_size_that_the_folder_contradicts_is_refused(echelon, tmp_path, key, value):
    save_model(tmp_path / "hf")
    result = echelon("train", "--set", "data.source=text.txt", "--set", "model.init=hf", "--set", f"{key}={value}")
    assert result.returncode == 2, result.stdout + result.stderr
    assert key in result.stderr and "hf" in result.stderr and result.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_given_size_that_the_folder_confirms_is_taken(echelon, tmp_path):
    save_model(tmp_path / "hf")
    given = dict(model_layers=2, model_width=48, model_heads=3, model_vocab=300, model_context=24, model_tied=True)
    echelon.train_well("a", model_init="hf", train_steps=1, **given)


@pytest.mark.parametrize("change, says", [
    (dict(activation_function="gelu"), "activation_function"),
    (dict(n_inner=100), "n_inner"),
    (dict(scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx"),
    (dict(layer_norm_epsilon=1e-6), "layer_norm_epsilon"),
    (dict(model_type="t5"), "model_type"),
    (dict(n_head=5), "heads"),
    (dict(n_head=0), "n_head"),
    (dict(n_layer=3), "transformer.h.2"),
    (dict(vocab_size=301), "wte"),
    (dict(tie_word_embeddings=False), "lm_head.weight"),
])
def test_a_folder_of_another_architecture_is_refused(echelon, tmp_path, change, says):
    save_model(tmp_path / "hf")
    path = tmp_path / "hf" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    result = echelon.train(**FROM_FOLDER, model_init="hf")
    assert result.returncode == 2, result.stdout + result.stderr
    assert says in result.stderr and result.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_weights_without_their_config_or_their_tensors_are_refused(echelon, tmp_path):
    save_model(tmp_path / "whole")
    for lost in ("config.json", "model.safetensors"):
        shutil.copytree(tmp_path / "whole", tmp_path / "hf")
        (tmp_path / "hf" / lost).unlink()
        result = echelon.train(**FROM_FOLDER, model_init="hf")
        assert result.returncode == 2 and lost in result.stderr, result.stderr
        assert not (tmp_path / "runs").exists()
        shutil.rmtree(tmp_path / "hf")


def same_folder(one, other):
    names = sorted(path.name for path in one.iterdir())
    return names == sorted(path.name for path in other.iterdir()) and all(
        (one / name).read_bytes() == (other / name).read_bytes() for name in names)


@pytest.mark.parametrize("ranks, settings", [
    (1, {}), (1, dict(train_precision="fp64", model_tied=False)), (1, dict(train_precision="bf16")),
    (2, dict(parallel_zero=3)), (2, dict(parallel_pipeline=2))],
    ids=["one process", "fp64, untied", "bf16", "zero 3", "pipeline"])
def test_export_writes_what_a_finished_run_writes(echelon, tmp_path, ranks, settings):
    launch = ["--nproc", ranks] if ranks > 1 else []
    run = echelon.train_well("a", *launch, **settings)
    result = echelon("export", run, "-o", "out/weights")
    assert result.returncode == 0, result.stderr
    assert "after step 12 of 12" in result.stdout and result.stdout.count("\n") == 1
    assert same_folder(tmp_path / "out" / "weights", run / "weights")


def test_export_writes_the_weights_of_a_state_on_the_way(echelon, tmp_path):
    # 12 steps that save every 5: the state is that after step 10, which a run of 10 steps ends with.
    longer, shorter = echelon.train_well("a", train_save_every=5), echelon.train_well("b", train_steps=10)
    result = echelon("export", longer, "-o", "half")
    assert result.returncode == 0 and "after step 10 of 12" in result.stdout, result.stdout + result.stderr
    assert same_folder(tmp_path / "half", shorter / "weights")
    assert not same_folder(tmp_path / "half", longer / "weights")
    model = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "half")
    assert model.config.n_embd == 32
    text = echelon("generate", "half", "--tokens", 5)
    assert text.returncode == 0 and text.stdout


def test_export_writes_whole_weights_while_the_run_goes_on(echelon, tmp_path):
    # A constant rate and a state after every step: what a longer run has on its way, shorter runs end with.
    job = echelon.start(*echelon.train_arguments("--name", "long", train_steps=1000000, train_save_every=1))
    try:
        state, until = echelon.folder / "runs/long/state.safetensors", time.monotonic() + 60
        while not state.exists():
            assert job.poll() is None and time.monotonic() < until, job.communicate()
            time.sleep(0.01)
        exported = {}
        while len(exported) < 3:
            assert job.poll() is None and time.monotonic() < until, "the run ended, or its state stays the same"
            result = echelon("export", "runs/long", "-o", f"out{len(exported)}")
            assert result.returncode == 0, result.stderr
            exported[int(re.search(r"after step (\d+) of 1000000", result.stdout).group(1))] = f"out{len(exported)}"
        assert job.poll() is None, "the run goes on"
    finally:
        job.send_signal(signal.SIGINT)
        job.communicate(timeout=60)
    assert job.returncode == 130
    for step, folder in exported.items():
        assert same_folder(tmp_path / folder, echelon.train_well(f"to {step}", train_steps=step) / "weights"), step


def test_export_without_a_folder_gives_the_run_its_weights_back(echelon):
    run = echelon.train_well("a")
    before = (run / "weights" / "model.safetensors").read_bytes()
    shutil.rmtree(run / "weights")
    assert echelon("export", run).returncode == 0
    assert (run / "weights" / "model.safetensors").read_bytes() == before


def test_export_overwrites_weights_only_when_told_to(echelon, tmp_path):
    run = echelon.train_well("a", train_save_every=5)  # the state after step 10, the weights after step 12
    (tmp_path / "file").write_text("notes")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes").write_text("notes")
    assert echelon("export", run, "-o", "out").returncode == 0, "nothing is overwritten there"
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.json").write_text("{}")
    for arguments, exists in ([], run / "weights" / "config.json"), (["-o", "out"], "out/config.json"), (
            ["-o", "config"], "config/config.json"):
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        result = echelon("export", run, *arguments)
        assert result.returncode == 2 and result.stdout == "", result.stdout
        assert result.stderr == (f"echelon: error: {exists} exists; choose another folder with -o, "
                                 "or overwrite it with --force\n")
        assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        assert echelon("export", run, *arguments, "--force").returncode == 0
    assert same_folder(tmp_path / "config", run / "weights")
    result = echelon("export", run, "-o", "file", "--force")
    assert result.returncode == 2 and "file is a file, and export writes a folder" in result.stderr, result.stderr
    assert (tmp_path / "file").read_text() == "notes"


def test_export_refuses_what_is_no_run_with_a_state(echelon, tmp_path):
    run = echelon.train_well("a")
    config = (run / "config.toml").read_text()
    for spoil, says in [(lambda: (run / "config.toml").write_text(config.replace("width = 32", "width = 64")), "[256, 64]"),
                        (lambda: (run / "state.safetensors").unlink(), "no saved state"),
                        (lambda: shutil.rmtree(run), "no run")]:
        spoil()
        result = echelon("export", run, "-o", "out")
        assert result.returncode == 2 and says in result.stderr and result.stderr.count("\n") == 1, result.stderr
        assert not (tmp_path / "out").exists()


def test_generate_writes_text_with_the_weights_of_a_run(echelon):
    run = echelon.train_well("a")
    texts = [echelon("generate", run / "weights", "--tokens", 40, "--prompt", "the rank", "--seed", seed)
             for seed in (1, 1, 2)]
    assert all(t.returncode == 0 for t in texts), texts
    assert texts[0].stdout == texts[1].stdout != texts[2].stdout
    assert texts[0].stdout.startswith("the rank")
