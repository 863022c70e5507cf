"""LoRA on the command line: ranks train what one process trains, weights are written merged or as an adapter in PEFT's
format, and an adapter's folder goes wherever a model's can."""

import json

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from safetensors.torch import load_file, save_file  # noqa: E402

torch.set_num_threads(1)

FROM_FOLDER = dict(model_layers=None, model_width=None, model_heads=None, model_context=None)
CLASSES = {"gpt2": transformers.GPT2LMHeadModel, "llama": transformers.LlamaForCausalLM}
RANK = 3


@pytest.fixture(scope="module", params=CLASSES)
def base(request, tmp_path_factory):
    torch.manual_seed(5)
    if request.param == "gpt2":
        config = transformers.GPT2Config(n_layer=2, n_embd=48, n_head=4, vocab_size=256, n_positions=24, bos_token_id=0,
                                         eos_token_id=0, echelon_tokeniser="bytes")
    else:
        config = transformers.LlamaConfig(num_hidden_layers=2, hidden_size=48, num_attention_heads=4,
                                          num_key_value_heads=2, intermediate_size=72, vocab_size=256,
                                          max_position_embeddings=24, bos_token_id=0, eos_token_id=0,
                                          echelon_tokeniser="bytes")
    folder = tmp_path_factory.mktemp("base") / request.param
    CLASSES[request.param](config).save_pretrained(folder)
    return folder


def lora(**options):
    return {f"model.lora.{key}": value for key, value in options.items()}


def settings(base, **more):
    return FROM_FOLDER | dict(model_init=base, optim_rate=0.02) | lora(rank=RANK) | more


def logits_of(folder, change=None):
    model = CLASSES[json.loads((folder / "config.json").read_text())["model_type"]].from_pretrained(folder).eval()
    with torch.no_grad():
        if change:
            change(model)
        return model(torch.arange(40).view(2, 20) * 5).logits


def add_by_hand(adapter):
    """Adds alpha / rank B A to the matrices of a model, from the adapter's files alone."""
    tensors = load_file(adapter / "adapter_model.safetensors")
    config = json.loads((adapter / "adapter_config.json").read_text())

    def change(model):
        names = [name.removesuffix(".lora_A.weight") for name in tensors if name.endswith(".lora_A.weight")]
        assert 2 * len(names) == len(tensors)
        for name in names:
            delta = config["lora_alpha"] / config["r"] * tensors[name + ".lora_B.weight"] @ tensors[name + ".lora_A.weight"]
            weight = model.get_parameter(name.removeprefix("base_model.model.") + ".weight")
            weight.add_(delta.t() if config["fan_in_fan_out"] else delta)
    return change


@pytest.mark.parametrize("merge, opens", [("true", "transformers"), ("false", "PEFT")])
def test_the_end_of_a_run_says_what_opens_its_weights(echelon, base, merge, opens):
    result = echelon.train(**settings(base, train_steps=1, **lora(merge=merge)))
    assert result.returncode == 0 and f"weights/ opens in {opens}\n" in result.stdout, result.stdout + result.stderr


def test_a_merged_folder_is_the_base_with_its_adapter(echelon, base):
    run = echelon.train_well("merged", **settings(base))
    merged = logits_of(run / "weights")
    assert (merged - logits_of(base)).abs().max() > 0.01, "the model has not changed"
    echelon("export", run, "--adapter", "-o", run / "adapter").check_returncode()
    assert (logits_of(base, add_by_hand(run / "adapter")) - merged).abs().max() < 1e-6
    alone = echelon.train_well("adapter", **settings(base, **lora(merge="false")))
    assert sorted(path.name for path in (alone / "weights").iterdir()) == ["adapter_config.json",
                                                                           "adapter_model.safetensors"]
    ours, theirs = (load_file(run / name / "adapter_model.safetensors") for run, name in ((run, "adapter"),
                                                                                           (alone, "weights")))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("layout", [dict(parallel_zero=3), dict(parallel_tensor=2),
                                    dict(parallel_pipeline=2, train_micro_batches=2), dict(server_count=1, server_mode="sync")],
                         ids=["zero", "tensor", "pipeline", "server"])
def test_two_ranks_write_the_adapter_of_one_process(echelon, base, layout):
    common = settings(base, train_precision="fp64", **lora(merge="false", matrices="query,value,down"))
    one = echelon.train_well("one", **common, **{k: v for k, v in layout.items() if k == "train_micro_batches"})
    two = echelon.train_well("two", "--nproc", 2, **common, **layout)
    ours, theirs = (load_file(run / "weights" / "adapter_model.safetensors") for run in (two, one))
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert value.abs().max() > 0 and (ours[name] - value).abs().max() < 1e-12, name


def test_an_adapters_folder_goes_where_a_models_goes(echelon, base, oracle, tmp_path):
    run = echelon.train_well("a", **settings(base, **lora(merge="false")))
    ids = torch.arange(40).view(2, 20) * 5
    save_file({"input_ids": ids, "labels": ids.clone()}, tmp_path / "batch.safetensors")
    ours = oracle(run / "weights", tmp_path / "batch.safetensors", "fp32", 0, tmp_path / "out.safetensors")["logits"]
    assert (ours - logits_of(base, add_by_hand(run / "weights"))).abs().max() < 1e-5
    echelon("generate", run / "weights", "--tokens", 5).check_returncode()
    # Training goes on from it.
    further = echelon.train_well("b", **FROM_FOLDER, model_init=run / "weights", optim_rate=0.0)
    assert (logits_of(further / "weights") - logits_of(base, add_by_hand(run / "weights"))).abs().max() < 1e-6


@pytest.mark.parametrize("wrong, says", [
    (lora(matrices="query,qproj"), "model.lora.matrices has qproj"),
    (lora(rank=0, alpha=3), "model.lora.alpha = 3.0 is an option of LoRA"),
    (lora(rank=-1), "model.lora.rank"),
    (lora(init="nowhere"), "nowhere has no adapter_config.json"),
])
def test_mistakes_are_refused_and_nothing_is_written(echelon, base, wrong, says, tmp_path):
    result = echelon.train("--name", "wrong", **settings(base, **wrong))
    assert result.returncode == 2 and says in result.stderr, result.stderr
    assert not (tmp_path / "runs").exists()


def test_an_adapter_of_another_model_is_refused(echelon, base, tmp_path):
    run = echelon.train_well("a", **settings(base, **lora(merge="false")))
    tensors = load_file(run / "weights" / "adapter_model.safetensors")
    first = min(tensors)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "adapter_config.json").write_text((run / "weights" / "adapter_config.json").read_text())
    for change, says in ((lambda t: t | {first: t[first][:, :5].contiguous()}, "has shape"),
                         (lambda t: {name: value for name, value in t.items() if name != first}, "no"),
                         (lambda t: t | {"extra": torch.zeros(2)}, "extra")):
        save_file(change(tensors), broken / "adapter_model.safetensors")
        result = echelon.train("--name", "b", **FROM_FOLDER, model_init=base, **lora(init=broken))
        assert result.returncode == 2 and says in result.stderr, result.stderr
        assert result.stderr.count("\n") == 1, result.stderr
    (broken / "adapter_model.safetensors").write_bytes(b"not a file of tensors")
    result = echelon.train("--name", "b", **FROM_FOLDER, model_init=base, **lora(init=broken))
    assert result.returncode == 2 and not (tmp_path / "runs" / "b").exists()
