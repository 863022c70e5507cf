"""Weights in Hugging Face's Llama format, both ways: what a run writes opens in transformers, what transformers writes
starts a run, on one rank and on ranks that split it, and both give the same logits."""

import json
import tomllib

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from safetensors.torch import load_file, save_file  # noqa: E402

torch.set_num_threads(1)

SIZES = dict(num_hidden_layers=2, hidden_size=48, num_attention_heads=4, num_key_value_heads=2, intermediate_size=72,
             vocab_size=300, max_position_embeddings=24)
SCALED = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
FROM_FOLDER = dict(model_layers=None, model_width=None, model_heads=None, model_context=None)


def save_model(folder, tied=False, model_class=transformers.LlamaForCausalLM, **sizes):
    torch.manual_seed(5)
    config = transformers.LlamaConfig(**(SIZES | sizes), tie_word_embeddings=tied, rope_parameters=dict(SCALED),
                                      bos_token_id=0, eos_token_id=0, echelon_tokeniser="bytes")
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
    ours = oracle(weights, scratch / "batch.safetensors", "fp32", 0, scratch / "out.safetensors")["logits"]
    model = transformers.LlamaForCausalLM.from_pretrained(weights).eval()
    with torch.no_grad():
        return ours, model(ids).logits


@pytest.mark.parametrize("settings", [
    dict(model_tied=True), dict(model_tied=False, model_kv_heads=1),
    dict(model_kv_heads=2, model_heads=4, model_rope_factor=8, model_rope_context=16, model_rope_base=500,
         model_norm_epsilon=1e-6, model_ffn=72)], ids=["tied", "untied-grouped", "scaled"])
def test_a_run_leaves_weights_that_transformers_loads(echelon, oracle, tmp_path, settings):
    run = echelon.train_well("a", model_family="llama", **settings)
    model, report = transformers.LlamaForCausalLM.from_pretrained(run / "weights", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == settings.get("model_tied", True)
    assert model.config.rms_norm_eps == settings.get("model_norm_epsilon", 1e-5)
    assert model.config.rope_parameters["rope_theta"] == settings.get("model_rope_base", 10000)
    assert model.config.rope_parameters["rope_type"] == ("llama3" if "model_rope_factor" in settings else "default")
    ours, theirs = logits_of(oracle, run / "weights", tmp_path, vocab=256, tokens=32)
    assert (ours - theirs).norm() < 1e-5 * theirs.norm()
    assert theirs.std() > 0.01, "the model says nothing"


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("arguments, settings", [
    ((), {}), (("--nproc", 2), dict(parallel_tensor=2)), (("--nproc", 2), dict(parallel_zero=3)),
    (("--nproc", 2), dict(parallel_pipeline=2, train_micro_batches=2))], ids=["one", "tensor", "zero-3", "pipeline"])
def test_a_run_starts_from_a_folder_of_transformers(echelon, oracle, tmp_path, tied, arguments, settings):
    save_model(tmp_path / "hf", tied=tied)
    # With a rate of zero nothing but the weights that were read can be written.
    run = echelon.train_well("a", *arguments, **FROM_FOLDER, model_init="hf", train_steps=2, optim_rate=0,
                             model_recompute="full", **settings)
    config = tomllib.loads((run / "config.toml").read_text())["model"]
    config = {key: value for key, value in config.items() if not isinstance(value, dict)}  # without [model.bert], [model.lora]
    assert config == {"family": "llama", "layers": 2, "width": 48, "heads": 4, "vocab": 300, "context": 24, "tied": tied,
                      "dropout": 0.0, "recompute": "full", "init": str(tmp_path / "hf"), "kv_heads": 2, "ffn": 72,
                      "norm_epsilon": 1e-6, "rope_base": 500.0, "rope_factor": 8.0, "rope_low": 1.0, "rope_high": 4.0,
                      "rope_context": 16}
    before, after = load_file(tmp_path / "hf" / "model.safetensors"), load_file(run / "weights" / "model.safetensors")
    assert sorted(before) == sorted(after)
    for name in before:
        assert torch.equal(before[name], after[name]), name
    ours, theirs = logits_of(oracle, tmp_path / "hf", tmp_path, vocab=300, tokens=24)
    assert (ours - theirs).norm() < 1e-5 * theirs.norm()


def test_a_folder_that_transformers_4_wrote_is_read_the_same(echelon, tmp_path):
    save_model(tmp_path / "hf")
    run = echelon.train_well("a", **FROM_FOLDER, model_init="hf", train_steps=1)
    path = tmp_path / "hf" / "config.json"
    config = json.loads(path.read_text())
    scaling = config.pop("rope_parameters")
    path.write_text(json.dumps(config | {"rope_theta": scaling.pop("rope_theta"), "rope_scaling": scaling}))
    again = echelon.train_well("b", **FROM_FOLDER, model_init="hf", train_steps=1)
    assert (run / "metrics.jsonl").read_bytes() == (again / "metrics.jsonl").read_bytes()


def test_a_run_starts_from_the_bare_model_too(echelon, tmp_path):
    model = save_model(tmp_path / "hf", tied=True, model_class=transformers.LlamaModel)
    assert not any(name.startswith("model.") for name in load_file(tmp_path / "hf" / "model.safetensors"))
    run = echelon.train_well("a", **FROM_FOLDER, model_init="hf", train_steps=1, optim_rate=0)
    after = load_file(run / "weights" / "model.safetensors")
    for name, value in model.state_dict().items():
        assert torch.equal(after["model." + name], value), name


@pytest.mark.parametrize("change, says", [
    (dict(hidden_act="gelu"), "hidden_act"),
    (dict(attention_bias=True), "attention_bias"),
    (dict(mlp_bias=True), "mlp_bias"),
    (dict(head_dim=16), "head_dim"),
    (dict(rope_parameters={"rope_type": "yarn", "factor": 4.0}), "yarn"),
    (dict(num_key_value_heads=3), "model.kv_heads"),
    (dict(intermediate_size=64), "gate_proj"),
    (dict(vocab_size=301), "embed_tokens"),
    (dict(model_type="mistral"), "gpt2, llama"),
])
def test_a_folder_of_another_architecture_is_refused(echelon, tmp_path, change, says):
    save_model(tmp_path / "hf")
    path = tmp_path / "hf" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    result = echelon.train(**FROM_FOLDER, model_init="hf")
    assert result.returncode == 2, result.stdout + result.stderr
    assert says in result.stderr and result.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("settings, says", [
    (dict(model_family="gpt2"), "model.family = gpt2, but the weights in hf are of a model with llama"),
    (dict(model_kv_heads=1), "model.kv_heads = 1, but the weights in hf are of a model with 2")])
def test_what_was_given_and_the_folder_contradicts_is_refused(echelon, tmp_path, settings, says):
    save_model(tmp_path / "hf")
    result = echelon.train(**FROM_FOLDER, model_init="hf", **settings)
    assert result.returncode == 2, result.stdout + result.stderr
    assert says in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize("settings, says", [
    (dict(model_kv_heads=2), "model.kv_heads = 2 is an option of model.family=llama"),
    (dict(model_family="llama", model_kv_heads=2, model_heads=4, parallel_tensor=4),
     "2 key-value heads of model.layers.0.self_attn.qkv_proj.weight cannot be shared out over parallel.tensor = 4"),
    (dict(model_family="lama"), "llama")])
def test_options_that_make_no_model_are_refused(echelon, settings, says):
    result = echelon.train("--nproc", settings.get("parallel_tensor", 1), **settings)
    assert result.returncode == 2, result.stdout + result.stderr
    assert says in result.stderr and result.stderr.count("\n") == 1, result.stderr


def test_a_llama_generates_text_goes_on_and_is_exported(echelon):
    run = echelon.train_well("a", model_family="llama", model_kv_heads=1, train_steps=20, optim_rate=1e-2)
    texts = [echelon("generate", run / "weights", "--prompt", "the ", "--tokens", 12, "--temperature", 0).stdout
             for _ in range(2)]
    assert texts[0] == texts[1] and texts[0].startswith("the ") and len(texts[0]) > 12
    more = echelon("train", "--resume", run, "--set", "train.steps=24")
    assert more.returncode == 0, more.stdout + more.stderr
    out = echelon("export", run, "-o", "there")
    assert out.returncode == 0, out.stdout + out.stderr
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (run / "weights", echelon.folder / "there"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    refused = echelon("train", "--resume", run, "--set", "train.steps=30", "--set", "model.family=gpt2")
    assert refused.returncode == 2 and "model.family" in refused.stderr, refused.stdout + refused.stderr
