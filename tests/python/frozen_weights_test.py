"""Frozen weights: files have them exactly as model.init has them, also in bf16; adapters have all that is theirs; and a
job that goes on, or that others join, computes with the same ones."""

import json
import os
import re
import shutil
import signal

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
from conftest import Echelon, metrics  # noqa: E402
from finetune_test import SETTINGS, sentences, word_pieces, write_tsv  # noqa: E402
from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from server_test import address_to_join, end, start, wait_for_steps  # noqa: E402

torch.set_num_threads(1)

FROM_FOLDER = dict(model_layers=None, model_width=None, model_heads=None, model_context=None)
LORA = {"model.lora.rank": 3}
ADAPTER = LORA | {"model.lora.merge": "false"}


def save_base(folder, seed=5):
    torch.manual_seed(seed)
    config = transformers.GPT2Config(n_layer=2, n_embd=48, n_head=4, vocab_size=256, n_positions=24, bos_token_id=0,
                                     eos_token_id=0, echelon_tokeniser="bytes")
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.fixture
def base(tmp_path):
    return save_base(tmp_path / "base")


def settings(base, **more):
    return FROM_FOLDER | dict(model_init=base, optim_rate=0.02, train_steps=10) | more


def weights(folder):
    return load_file(folder / "model.safetensors")


def additions(adapter):
    """alpha / rank B A of each matrix, as the model's file has the matrix: GPT-2's are [in, out]."""
    tensors = load_file(adapter / "adapter_model.safetensors")
    config = json.loads((adapter / "adapter_config.json").read_text())
    scale = config["lora_alpha"] / config["r"]
    found = {}
    for name, b in tensors.items():
        if name.endswith(".lora_B.weight"):
            a = tensors[name.replace("lora_B", "lora_A")]
            found[name.removeprefix("base_model.model.").replace("lora_B.weight", "weight")] = \
                scale * (b.double() @ a.double()).t()
    return found


# ---- What files have


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("ranks, layout", [(1, {}), (2, dict(parallel_zero=3)), (2, dict(parallel_tensor=2)),
                                           (2, dict(parallel_pipeline=2, train_micro_batches=2))],
                         ids=["one", "zero", "tensor", "pipeline"])
def test_a_merged_folder_has_the_exact_base_plus_the_addition(echelon, base, precision, ranks, layout):
    run = echelon.train_well("a", "--nproc", ranks, **settings(base, train_precision=precision, **LORA, **layout))
    echelon("export", run, "--adapter", "-o", run / "adapter").check_returncode()
    exported = echelon("export", run, "-o", run / "exported")
    assert exported.returncode == 0 and exported.stderr == "", exported.stderr
    before, after, added = weights(base), weights(run / "weights"), additions(run / "adapter")
    assert len(added) == 2
    for name, value in after.items():
        if name not in added:
            assert torch.equal(value, before[name]), name
            continue
        delta = added[name]
        wrong = (value.double() - before[name].double() - delta).norm() / delta.norm()
        assert delta.norm() > 0 and wrong < 1e-4, (name, wrong)  # fp32's rounding of the sum; bf16's is 0.4
    again = weights(run / "exported")
    assert all(torch.equal(value, again[name]) for name, value in after.items())


@pytest.mark.parametrize("ranks, layout", [(1, {}), (2, dict(parallel_tensor=2)), (2, dict(server_count=1))],
                         ids=["one", "tensor", "server"])
def test_frozen_weights_are_written_as_they_were_read(echelon, base, ranks, layout):
    run = echelon.train_well("a", "--nproc", ranks, **settings(
        base, train_precision="bf16", train_freeze=["transformer.h.0.*", "transformer.w*"], **layout))
    before, after = weights(base), weights(run / "weights")
    frozen = [name for name in after if name.startswith(("transformer.h.0.", "transformer.w"))]
    assert len(frozen) == 14
    for name in frozen:
        assert torch.equal(after[name], before[name]), name
    assert not torch.equal(after["transformer.h.1.mlp.c_fc.weight"], before["transformer.h.1.mlp.c_fc.weight"])


def test_random_frozen_weights_are_written_as_the_seed_gives_them(echelon):
    common = dict(train_freeze=["transformer.h.0.*"], train_steps=2)
    exact = weights(echelon.train_well("fp32", **common) / "weights")
    ours = weights(echelon.train_well("bf16", train_precision="bf16", **common) / "weights")
    for name in exact:
        if name.startswith("transformer.h.0."):
            assert torch.equal(ours[name], exact[name]), name


def test_an_export_says_that_the_base_is_gone_or_another(echelon, base):
    run = echelon.train_well("a", **settings(base, train_precision="bf16", **LORA))
    name = "transformer.h.0.mlp.c_fc.weight"
    exact, rounded = weights(base)[name], weights(base)[name].bfloat16().float()
    save_base(base, seed=6)
    other = echelon("export", run, "-o", run / "other")
    assert other.returncode == 0 and "has other values than training began with" in other.stderr, other.stderr
    shutil.rmtree(base)
    gone = echelon("export", run, "-o", run / "gone")
    assert gone.returncode == 0 and "frozen parameters are as rounded for the computation" in gone.stderr, gone.stderr
    assert "has no model.safetensors" in gone.stderr and gone.stderr.count("\n") == 1, gone.stderr
    for folder in ("other", "gone"):
        assert torch.equal(weights(run / folder)[name], rounded)
    assert torch.equal(weights(run / "weights")[name], exact)


# ---- What an adapter has


@pytest.mark.parametrize("ranks, layout", [(1, {}), (2, dict(parallel_tensor=2)), (2, dict(parallel_zero=3))],
                         ids=["one", "tensor", "zero"])
def test_an_adapter_has_its_frozen_factors(echelon, base, ranks, layout):
    run = echelon.train_well("a", "--nproc", ranks, **settings(
        base, train_precision="bf16", train_freeze=["*.lora_A.weight"], **ADAPTER, **layout))
    assert len(additions(run / "weights")) == 2
    whole = echelon.train_well("whole", **settings(base, train_steps=1, optim_rate=0, **ADAPTER))
    first, ours = (load_file(folder / "weights" / "adapter_model.safetensors") for folder in (whole, run))
    for name in ours:
        assert torch.equal(ours[name], first[name]) == name.endswith("lora_A.weight"), name
    evaluated = echelon("evaluate", run / "weights", "--data", "text.txt")
    assert evaluated.returncode == 0, evaluated.stderr


@pytest.fixture
def classifier(tmp_path):
    """The program in a folder with a bare BERT, and sentences with named labels."""
    def named(rows):
        return [(text, ["neg", "pos"][label]) for text, label in rows]

    rows = sentences(200, 1)
    write_tsv(tmp_path / "train.tsv", named(rows))
    write_tsv(tmp_path / "dev.tsv", named(sentences(41, 2)))
    tokenizer = word_pieces([text for text, _ in rows])
    torch.manual_seed(5)
    transformers.BertModel(transformers.BertConfig(
        num_hidden_layers=2, hidden_size=32, num_attention_heads=2, intermediate_size=64, vocab_size=len(tokenizer),
        max_position_embeddings=24), add_pooling_layer=False).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return Echelon(tmp_path)


LABELLED = SETTINGS | dict(data_source="train.tsv", data_validation_source="dev.tsv", train_steps=20) | ADAPTER


@pytest.mark.parametrize("freeze", [None, ["classifier.*"]], ids=["trained", "frozen"])
def test_a_classifications_adapter_has_its_head_and_its_labels(classifier, freeze):
    run = classifier.train_well("adc", "--json", "summary.json", **LABELLED, train_freeze=freeze)
    with safe_open(run / "weights" / "adapter_model.safetensors", "pt") as adapter:
        assert "base_model.model.classifier.weight" in adapter.keys()
        assert json.loads(adapter.metadata()["echelon_label_names"]) == ["neg", "pos"]
    config = json.loads((run / "weights" / "adapter_config.json").read_text())
    assert "classifier" in config["modules_to_save"]
    evaluated = classifier("evaluate", run, "--json", "scores.json")
    assert evaluated.returncode == 0 and "neg" in evaluated.stdout, evaluated.stderr
    scores, summary = (json.loads((classifier.folder / name).read_text()) for name in ("scores.json", "summary.json"))
    assert abs(scores["loss"] - summary["val_loss"]) < 1e-6
    # Training goes on from it with the same labels, also beside its base.
    for name, where in (("alone", {"model_init": run / "weights"}), ("beside", {"model.lora.init": run / "weights"})):
        again = classifier.train_well(name, **LABELLED | where | {"model.lora.rank": None})
        assert 'label_names = ["neg", "pos"]' in (again / "config.toml").read_text()


def test_an_adapter_with_broken_labels_is_refused(classifier):
    adapter = classifier.train_well("adc", **LABELLED) / "weights"
    tensors = load_file(adapter / "adapter_model.safetensors")
    for names in ("pos", '["pos"]', '["pos", 3]'):
        save_file(tensors, adapter / "adapter_model.safetensors", {"format": "pt", "echelon_label_names": names})
        result = classifier("evaluate", adapter, "--data", "dev.tsv")
        assert result.returncode != 0 and "not the names of 2 labels" in result.stderr, result.stderr


# ---- Going on


@pytest.mark.parametrize("change", ["model.lora.matrices=key,value", "model.lora.alpha=32", "model.heads=2"])
def test_a_state_is_not_resumed_as_another_function(echelon, base, change):
    run = echelon.train_well("a", **settings(base, **LORA))
    state = (run / "state.safetensors").read_bytes()
    result = echelon("train", "--resume", run, "--set", "train.steps=12", "--set", change)
    key = change.split("=")[0]
    assert result.returncode == 2 and f"was saved with {key} = " in result.stderr, result.stderr
    assert (run / "state.safetensors").read_bytes() == state
    allowed = ["model.lora.merge=false", "model.dropout=0.1", "model.recompute=full"]
    echelon("train", "--resume", run, "--set", "train.steps=12",
            *(word for one in allowed for word in ("--set", one))).check_returncode()


def test_a_bert_is_not_resumed_with_another_epsilon(classifier):
    run = classifier.train_well("a", **LABELLED)
    for change in ("model.bert.norm_epsilon=0.1", 'task.label_names=["pos", "neg"]'):
        result = classifier("train", "--resume", run, "--set", "train.steps=25", "--set", change)
        assert result.returncode == 2 and f"was saved with {change.split('=')[0]} = " in result.stderr, result.stderr


@pytest.mark.parametrize("options", [LORA, dict(train_freeze=["transformer.h.0.*"])], ids=["lora", "freeze"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_workers_of_a_resumed_server_have_the_frozen_weights_of_the_state(echelon, base, options, precision):
    common = settings(base, server_count=1, server_mode="sync", train_precision=precision, **options)
    whole = echelon.train_well("whole", "--nproc", 2, **common)
    run = echelon.train_well("a", "--nproc", 2, **common | dict(train_steps=5))
    save_base(base, seed=6)
    resumed = echelon("train", "--nproc", 2, "--resume", run, "--set", "train.steps=10")
    assert resumed.returncode == 0, resumed.stderr
    assert metrics(run) == metrics(whole)


@pytest.mark.parametrize("frozen", [["model.lora.rank=2"], ['train.freeze=["transformer.h.0.*"]']],
                         ids=["lora", "freeze"])
def test_none_joins_a_job_with_frozen_parameters(tmp_path, frozen):
    options = ["server.count=1", "server.mode=bounded", "train.steps=100000", *frozen]
    job = start(tmp_path, "--nproc", "2", "--name", "job", settings=options)
    try:
        wait_for_steps(job, tmp_path, 5)
        status, out, err = end(start(tmp_path, "--join", address_to_join(job), settings=options))
        assert status == 2 and re.search(r"the job has frozen parameters \((model.lora|train.freeze)\)", err), out + err
    finally:
        os.kill(job.pid, signal.SIGTERM)
        job.communicate(timeout=60)
