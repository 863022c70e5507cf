"""echelon evaluate: its scores are those of transformers and of the formulas, on any number of ranks; a run, a folder
and an adapter can be evaluated; and what does not go together is refused before anything is written."""

import json
import math
import random
import re
import shutil
import signal

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
from conftest import Echelon  # noqa: E402
from finetune_test import SETTINGS, byte_level, sentences, word_pieces, write_tsv  # noqa: E402
from terminal_test import DRAWN, Watched, columns_of  # noqa: E402
from torch.nn import functional as F  # noqa: E402

torch.set_num_threads(1)

NAMES = ["anger", "fear", "joy", "love", "surprise"]


def labelled(labels, count=97, seed=3):
    """Sentences of several lengths with labels that no model has learnt."""
    choose = random.Random(seed)
    rows = []
    for text, _ in sentences(count, seed):
        rows.append((" ".join([text] * choose.choice([1, 1, 2])), choose.randrange(labels)))
    return rows


def classifier_folder(folder, name, labels, rows, names=None):
    tokenizer = word_pieces([text for text, _ in rows])
    torch.manual_seed(11)
    named = dict(id2label=dict(enumerate(names)), label2id={n: i for i, n in enumerate(names)}) if names else {}
    sizes = dict(vocab_size=len(tokenizer), max_position_embeddings=32, num_labels=labels, initializer_range=0.4,
                 **named)
    if name == "bert":
        config = transformers.BertConfig(num_hidden_layers=2, hidden_size=32, num_attention_heads=2,
                                         intermediate_size=64, **sizes)
        model = transformers.BertForSequenceClassification(config)
    else:
        config = transformers.DistilBertConfig(n_layers=2, dim=32, n_heads=2, hidden_dim=64, **sizes)
        model = transformers.DistilBertForSequenceClassification(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def quotient(above, below):
    return above / below if below else 0.0


def expected_scores(folder, rows):
    """Loss and predictions of transformers, one text at a time, and the scores by their formulas."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    labels = model.config.num_labels
    confusion, loss = [[0] * labels for _ in range(labels)], 0.0
    for text, label in rows:
        batch = tokenizer(text, return_tensors="pt")
        if model.config.model_type == "distilbert":
            batch.pop("token_type_ids", None)
        with torch.no_grad():
            logits = model(**batch).logits.double()
        loss += F.cross_entropy(logits, torch.tensor([label])).item()
        confusion[label][logits.argmax().item()] += 1
    c, all_ = confusion, len(rows)
    truth = [sum(row) for row in c]
    told = [sum(row[j] for row in c) for j in range(labels)]
    # As scikit-learn's average="macro": labels that occur in the data or among the answers.
    counted = [1] if labels == 2 else [k for k in range(labels) if truth[k] + told[k]]
    f1, precision, recall = (
        sum(quotient(above(k), below(k)) for k in counted) / len(counted)
        for above, below in ((lambda k: 2 * c[k][k], lambda k: truth[k] + told[k]),
                             (lambda k: c[k][k], lambda k: told[k]), (lambda k: c[k][k], lambda k: truth[k])))
    right = sum(c[k][k] for k in range(labels))
    # The correlation of the indicators of labels and answers, from its definition as covariances.
    mean_t, mean_p = [t / all_ for t in truth], [t / all_ for t in told]
    cov_tp = sum((c[k][k] / all_ - mean_t[k] * mean_p[k]) for k in range(labels))
    cov_tt, cov_pp = (sum(m * (1 - m) for m in mean) for mean in (mean_t, mean_p))
    return dict(loss=loss / all_, accuracy=right / all_, f1=f1, precision=precision, recall=recall,
                matthews=quotient(cov_tp, math.sqrt(cov_tt * cov_pp))), confusion


class Evaluating(Echelon):
    def evaluate(self, model, *arguments):
        """Must succeed: what was printed, and the JSON."""
        out = self.folder / "scores.json"
        result = self("evaluate", model, "--json", out, "--set", "train.threads=1", *arguments)
        assert result.returncode == 0, result.stdout + result.stderr
        assert result.stderr == ""
        scores = json.loads(out.read_text())
        out.unlink()
        return result.stdout, scores

    def refused(self, *arguments):
        before = sorted(self.folder.rglob("*"))
        result = self("evaluate", *arguments)
        assert result.returncode == 2, result.stdout + result.stderr
        assert result.stdout == "" and result.stderr.count("\n") == 1, result.stdout + result.stderr
        assert sorted(self.folder.rglob("*")) == before, "something was written"
        return result.stderr


@pytest.fixture
def program(tmp_path):
    return Evaluating(tmp_path)


@pytest.mark.parametrize("name, labels, names", [("bert", 2, None), ("bert", 5, NAMES), ("distilbert", 3, NAMES[:3])])
def test_scores_of_a_classification_are_those_of_transformers_on_any_number_of_ranks(program, name, labels, names):
    rows = labelled(labels)
    folder = classifier_folder(program.folder / "model", name, labels, rows, names)
    write_tsv(program.folder / "dev.tsv", [(text, names[label] if names else label) for text, label in rows])
    wanted, confusion = expected_scores(folder, rows)
    assert sum(1 for j in range(labels) if any(row[j] for row in confusion)) > 1, "the model always says the same"
    alone = None
    for ranks in (1, 2, 3):
        text, scores = program.evaluate("model", "--data", "dev.tsv", "--nproc", ranks)
        assert scores["confusion"] == confusion
        assert scores["labels"] == (names or ["0", "1"])
        assert scores["samples"] == len(rows) and scores["task"] == "classify"
        assert (scores["model"], scores["data"]) == ("model", "dev.tsv")
        assert scores["loss"] == pytest.approx(wanted["loss"], abs=1e-5)
        for score in ("accuracy", "f1", "precision", "recall", "matthews"):
            assert scores[score] == pytest.approx(wanted[score], abs=1e-12), score
        alone = alone or scores
        assert scores["loss"] == pytest.approx(alone["loss"], rel=1e-13)
        counted = [key for key in scores if key not in ("loss", "seconds")]
        assert {key: scores[key] for key in counted} == {key: alone[key] for key in counted}
        assert f"accuracy    {scores['accuracy']:.4f}" in text and max(map(len, text.splitlines())) <= 80, text


def test_batches_and_padding_change_nothing_but_rounding(program):
    rows = labelled(3)
    classifier_folder(program.folder / "model", "bert", 3, rows)
    write_tsv(program.folder / "dev.tsv", rows)
    results = [program.evaluate("model", "--data", "dev.tsv", "--set", f"train.batch={batch}", "--set",
                                f"train.pad_to={pad}")[1] for batch, pad in ((1, 1), (97, 32))]
    assert results[0]["confusion"] == results[1]["confusion"]
    assert results[0]["loss"] == pytest.approx(results[1]["loss"], rel=1e-6)
    fp64 = program.evaluate("model", "--data", "dev.tsv", "--set", "train.precision=fp64")[1]
    assert fp64["loss"] == pytest.approx(results[0]["loss"], rel=1e-6)


def test_perplexity_of_masked_words_is_the_formula(program):
    """A model whose logits are its bias, and a mask over all words: what is hidden does not matter."""
    texts = [text for text, _ in sentences(60, 5)]
    tokenizer = word_pieces(texts)
    torch.manual_seed(2)
    config = transformers.BertConfig(num_hidden_layers=1, hidden_size=32, num_attention_heads=2, intermediate_size=64,
                                     vocab_size=len(tokenizer), max_position_embeddings=32)
    model = transformers.BertForMaskedLM(config)
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight.zero_()
        model.cls.predictions.bias.normal_()
    model.save_pretrained(program.folder / "model")
    tokenizer.save_pretrained(program.folder / "model")
    (program.folder / "lines.txt").write_text("\n".join(texts) + "\n")
    tokens = torch.tensor([i for text in texts for i in tokenizer(text, add_special_tokens=False)["input_ids"]])
    bias = model.cls.predictions.bias.detach().double()
    loss = -torch.log_softmax(bias, 0)[tokens].mean().item()
    accuracy = (tokens == bias.argmax()).double().mean().item()
    for ranks in (1, 2):
        _, scores = program.evaluate("model", "--data", "lines.txt", "--set", "task.mask=1", "--nproc", ranks)
        assert scores["loss"] == pytest.approx(loss, abs=1e-6)
        assert scores["perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
        assert scores["accuracy"] == pytest.approx(accuracy, abs=1e-12)
        assert scores["task"] == "mlm" and "confusion" not in scores and "f1" not in scores
    # Labels ask for a head that is not there, unless the task is named.
    write_tsv(program.folder / "dev.tsv", [(text, i % 2) for i, text in enumerate(texts)])
    assert "model has no head for a classification, and dev.tsv has labels" in program.refused(
        "model", "--data", "dev.tsv")
    _, named = program.evaluate("model", "--data", "dev.tsv", "--set", "task.mask=1", "--set", "task.name=mlm")
    assert named["loss"] == pytest.approx(loss, abs=1e-6)
    assert "has no head for a classification" in program.refused("model", "--data", "dev.tsv", "--set",
                                                                 "task.name=classify")


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_perplexity_of_text_is_that_of_transformers(program, name, text):
    (program.folder / "book.txt").write_text(text)
    tokenizer = byte_level([text])
    torch.manual_seed(4)
    if name == "gpt2":
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=len(tokenizer), n_positions=32, n_embd=32, n_layer=2, n_head=2, initializer_range=0.3))
    else:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=len(tokenizer), max_position_embeddings=32, hidden_size=32, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, intermediate_size=48, initializer_range=0.3))
    model.eval().save_pretrained(program.folder / "model")
    tokenizer.save_pretrained(program.folder / "model")
    ids = torch.tensor(tokenizer(text)["input_ids"])
    for window in (32, 20):
        count = (len(ids) - 1) // window
        inputs, targets = ids[:count * window].view(count, window), ids[1:count * window + 1]
        with torch.no_grad():
            loss = F.cross_entropy(model(inputs).logits.view(-1, len(tokenizer)), targets).item()
        for ranks in (1, 2):
            out, scores = program.evaluate("model", "--data", "book.txt", "--nproc", ranks, "--set",
                                           f"model.context={window}")
            assert scores["samples"] == count
            assert scores["loss"] == pytest.approx(loss, abs=1e-5)
            assert scores["perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
            assert scores["bits_per_byte"] == pytest.approx(loss / math.log(2) * len(ids) / len(text), rel=1e-5)
        assert f"{count} samples of {window} tokens" in out and f"perplexity  {scores['perplexity']:.5g}" in out, out


# ---- Runs and adapters


def test_a_run_is_evaluated_on_its_own_validation_data(program):
    rows = sentences(200, 1)
    write_tsv(program.folder / "train.tsv", rows, ("review", "label"))
    write_tsv(program.folder / "dev.tsv", sentences(41, 2), ("review", "label"))
    classifier_folder(program.folder / "model", "bert", 2, rows)
    common = SETTINGS | dict(data_source="train.tsv", data_text="review", train_steps=4, train_validate_every=2,
                             train_keep_best=True)
    for own in (dict(data_validation_source="dev.tsv"), dict(data_validation=0.2)):
        name = next(iter(own))
        run = program.train_well(name, "--json", "summary.json", **common, **own)
        summary = json.loads((program.folder / "summary.json").read_text())
        for ranks in (1, 2):
            _, scores = program.evaluate(f"runs/{name}/", "--nproc", ranks)
            assert scores["model"] == f"runs/{name}/weights"
            for score in ("accuracy", "f1", "matthews", "precision", "recall"):
                assert scores[score] == summary[f"val_{score}"], score
            assert scores["loss"] == pytest.approx(summary["val_loss"], rel=1e-6)
        assert program.evaluate(f"runs/{name}/best")[1]["model"] == f"runs/{name}/best"
        # Other data are read with the run's columns.
        assert program.evaluate(f"runs/{name}", "--data", "dev.tsv")[1]["samples"] == 41
    # With other training data, another share would be held out: the model may have seen it.
    write_tsv(program.folder / "train.tsv", rows[:-1], ("review", "label"))
    said = program.refused("runs/data_validation")
    assert "bytes to train on" in said and "name data with --data" in said, said
    (program.folder / "runs/data_validation/state.safetensors").unlink()
    assert program.refused("runs/data_validation") == said, "without a state, plan.json knows the data"
    (program.folder / "train.tsv").unlink()
    assert "train.tsv" in (said := program.refused("runs/data_validation")) and "with --data" in said, said


def test_runs_that_cannot_be_evaluated_say_why(program, text):
    (program.folder / "text.txt").write_text(text)
    run = program.train_well("bytes", "--json", "summary.json", train_validate_every=6)
    bits = json.loads((program.folder / "summary.json").read_text())["val_bits_per_byte"]
    out, scores = program.evaluate(run)
    assert scores["bits_per_byte"] == pytest.approx(bits, rel=1e-6) and "perplexity" not in scores
    assert "bits/byte" in out and scores["part"] == "validation"
    whole = program.evaluate("runs/bytes/weights", "--data", "text.txt", "--nproc", 3)[1]
    assert whole["samples"] == (len(text) - 1) // 32 and whole["part"] == "all"
    assert "did you mean runs/bytes?" in program.refused("bytes")
    program.train_well("blind", train_steps=2)
    assert "without validation data" in program.refused("runs/blind")
    shutil.rmtree(run / "weights")
    assert f"echelon export {run} -o DIR" in program.refused(run)
    (run / "state.safetensors").unlink()
    assert "has no weights" in program.refused(run)


def test_an_adapter_is_evaluated_with_its_model(program, text):
    (program.folder / "text.txt").write_text(text)
    torch.manual_seed(5)
    base = program.folder / "base"
    config = transformers.GPT2Config(n_layer=2, n_embd=48, n_head=4, vocab_size=256, n_positions=24, bos_token_id=0,
                                     eos_token_id=0, echelon_tokeniser="bytes")
    transformers.GPT2LMHeadModel(config).save_pretrained(base)
    run = program.train_well("a", model_layers=None, model_width=None, model_heads=None, model_context=None,
                             model_init=base, optim_rate=0.02, **{"model.lora.rank": 3, "model.lora.merge": "false"})
    assert program("export", run, "-o", "merged").returncode == 0
    losses = {folder: program.evaluate(folder, "--data", "text.txt", *more)[1]["loss"]
              for folder, more in ((run / "weights", []), ("merged", ["--nproc", 2]), (base, []))}
    assert losses[run / "weights"] == pytest.approx(losses["merged"], abs=1e-5)
    assert losses[base] - losses["merged"] > 0.01, "the adapter changes nothing"
    # An adapter whose model has moved: both are named.
    config = run / "weights/adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": "moved"}))
    assert "model.lora.init" in program.refused(run / "weights", "--data", "text.txt")
    both = program.evaluate(base, "--data", "text.txt", "--set", f"model.lora.init={run / 'weights'}")[1]["loss"]
    assert both == losses[run / "weights"]


# ---- What a person sees


def test_many_labels_show_their_largest_confusions(program):
    labels = 40
    rows = labelled(labels, 120)
    names = [f"a long name of label {i}" for i in range(labels)]
    classifier_folder(program.folder / "model", "bert", labels, rows, names)
    write_tsv(program.folder / "dev.tsv", rows)
    out, scores = program.evaluate("model", "--data", "dev.tsv")
    wrong = sorted((count for i, row in enumerate(scores["confusion"]) for j, count in enumerate(row)
                    if i != j and count), reverse=True)
    assert f"the largest 12 of {len(wrong)} confusions" in out, out
    listed = re.findall(r"^ +(\d+)  a long name of label \d+ taken for a long", out, re.M)
    assert list(map(int, listed)) == wrong[:12], out
    assert max(map(len, out.splitlines())) <= 80, out


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_bar_is_drawn_and_ctrl_c_ends_it(program, text, ranks):
    (program.folder / "text.txt").write_text(text)
    program.train_well("a", train_steps=1)
    (program.folder / "long.txt").write_text(text * 3000)
    arguments = ["evaluate", "runs/a", "--data", "long.txt", "--json", "out.json", "--nproc", str(ranks)]
    job = Watched(program, arguments, NO_COLOR="1")
    job.wait_for(lambda text: len(DRAWN.findall(text)) > 1)
    job.process.send_signal(signal.SIGINT)
    code, shown = job.end()
    assert code == 130 and shown.endswith("interrupted: nothing was written\r\n"), shown
    drawn = [line for line in DRAWN.findall(shown) if "samples/s" in line]
    assert all(re.match(r"sample +\d+/\d+  ", line) and columns_of(line) <= 80 for line in drawn), drawn
    assert not re.search(r"\x1b\[\d+m", shown) and not (program.folder / "out.json").exists()


def test_help_has_an_example_and_typos_are_named(program):
    shown = program("evaluate", "--help").stdout
    assert "echelon evaluate runs/" in shown and max(map(len, shown.splitlines())) <= 110
    assert "did you mean evaluate?" in program("evalute").stderr
    assert "did you mean --data?" in program("evaluate", "a", "--dat", "b").stderr
    assert "data.sorce" in program.refused("model", "--set", "data.sorce=a")


# ---- What is refused


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A classifier of three named labels, and files that it takes."""
    folder = tmp_path_factory.mktemp("evaluate")
    rows = labelled(3, 40)
    classifier_folder(folder / "model", "bert", 3, rows, NAMES[:3])
    write_tsv(folder / "dev.tsv", rows)
    (folder / "text.txt").write_text("a line\n")
    return folder


@pytest.fixture
def refusing(folders):
    return Evaluating(folders)


ROW = b"this film is warm\t1\n"


@pytest.mark.parametrize("content, says", [
    (b"sentence\tlabel\n" + ROW + b"\n" + ROW, "line 3: the line is empty"),
    (b"sentence\tlabel\n" + ROW + b"caf\xe9\t0\n", "line 3: byte 4 of the line, 0xe9, is not UTF-8"),
    (b"sentence\tlabel\n" + ROW + b"dull\n", "line 3: the line has 1 column and the first has 2"),
    (b"sentence\tlabel\n" + ROW + b"dull\t3\n", "line 3: label 3 is unknown: the labels of model are anger, fear, joy"),
    (b"sentence\tlabel\n" + ROW + b"dull\t-1\n", "line 3: label -1 is unknown"),
    (b"sentence\tlabel\n" + ROW + b"dull\thate\n", "line 3: label hate is unknown"),
    (b"sentence\tlabel\n" + ROW + b"  \t0\n", "line 3: the sentence is empty"),
    (b"sentence\nthis film is warm\n", "has no column label"),
    (b"sentence\tlabel\n", "has a header and no record"),
    (b"", "is empty"),
])
def test_a_bad_file_is_refused_with_its_line(refusing, content, says):
    bad = refusing.folder / "bad.tsv"
    bad.write_bytes(content)
    said = refusing.refused("model", "--data", "bad.tsv", "--json", "out.json")
    assert "bad.tsv" in said and says in said, said
    bad.unlink()


def test_ranks_refuse_a_bad_file_once(refusing):
    (refusing.folder / "bad.tsv").write_bytes(b"sentence\tlabel\n" + ROW + b"dull\t9\n")
    result = refusing("evaluate", "model", "--data", "bad.tsv", "--nproc", 2, "--json", "out.json")
    assert result.returncode == 2 and result.stderr.count("label 9 is unknown") == 1, result.stderr
    assert not (refusing.folder / "out.json").exists()
    (refusing.folder / "bad.tsv").unlink()


@pytest.mark.parametrize("arguments, says", [
    (["nowhere", "--data", "dev.tsv"], "there is no folder nowhere"),
    (["dev.tsv", "--data", "dev.tsv"], "dev.tsv is a file"),
    ([".", "--data", "dev.tsv"], "has no config.json"),
    (["model"], "--data is missing"),
    (["model", "--data", "missing.tsv"], "missing.tsv"),
    (["model", "--data", "random"], "nothing to evaluate a model on"),
    (["model", "--data", "text.txt"], "task.name=classify needs labels"),
    (["model", "--data", "dev.tsv", "--json", "none/out.json"], "none"),
    (["model", "--data", "dev.tsv", "--set", "train.steps=3"], "train.steps is an option of training"),
    (["model", "--data", "dev.tsv", "--set", "data.validation=0.3"], "data.validation is an option of training"),
    (["model", "--data", "dev.tsv", "--set", "data.label=stars"], "has no column stars"),
    (["model", "--data", "text.txt", "--set", "data.label=stars"], "is a column of records"),
    (["model", "--data", "dev.tsv", "--set", "data.source=text.txt"], "differ; give one of them"),
    (["model", "--data", "dev.tsv", "--set", "data.tokenizer=bytes"], "leave data.tokenizer out"),
    (["model", "--data", "dev.tsv", "--set", "data.tokenizer=nowhere"], "nowhere"),
    (["model", "--data", "dev.tsv", "--set", "model.context=64"], "more than the 32 positions"),
    (["model", "--data", "dev.tsv", "--set", "task.name=mlm"], "has no head for masked words"),
    (["model", "--data", "dev.tsv", "--set", "task.name=causal"], "can only do"),
    (["model", "--data", "dev.tsv", "--set", "train.batch=0"], "train.batch"),
    (["model", "--data", "dev.tsv", "--set", "train.threads=4000"], "train.threads"),
])
def test_what_does_not_go_together_is_refused(refusing, arguments, says):
    said = refusing.refused(*arguments)
    assert says in said, said


def test_folders_that_fit_no_model_are_refused(refusing, tmp_path):
    folder = tmp_path / "model"

    def changed(**values):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(refusing.folder / "model", folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | values))
        return refusing.refused(folder, "--data", "dev.tsv")

    assert 'model_type = "t5"' in changed(model_type="t5")
    said = changed(vocab_size=50)
    assert "word_embeddings.weight" in said and "[50, 32]" in said, said
    assert "of another size" in changed(id2label={"0": "a", "1": "b"})
    assert "has no config.json" in refusing.refused(tmp_path, "--data", "dev.tsv")
    changed(model_type="t5")
    (folder / "config.json").write_text((refusing.folder / "model/config.json").read_text())
    (folder / "model.safetensors").unlink()
    assert "has no model.safetensors" in refusing.refused(folder, "--data", "dev.tsv")
    # More tokens than rows of the embedding.
    shutil.copytree(refusing.folder / "model", tmp_path / "large")
    tokenizer = json.loads((tmp_path / "large/tokenizer.json").read_text())
    tokenizer["model"]["vocab"] |= {f"more{i}": 1000 + i for i in range(30)}
    (tmp_path / "large/tokenizer.json").write_text(json.dumps(tokenizer))
    assert "the model's embedding has" in refusing.refused(tmp_path / "large", "--data", "dev.tsv")
