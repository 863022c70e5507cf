"""Fine-tuning as people do it: a folder of transformers and a file go in, a folder comes out, which transformers loads
and which gives there the loss and the accuracy that Echelon reported."""

import json
import random
import re
import shutil
import tomllib

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
from conftest import Echelon, metrics  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from torch.nn import functional as F  # noqa: E402

torch.set_num_threads(1)

# A sentence is positive if its last word is good: what the smallest model learns in a few steps.
GOOD, BAD = "warm witty moving clever".split(), "dull bland tired clumsy".split()
PARTS = "the plot,a cast,the music,every scene,this film".split(",")
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def sentences(count, seed):
    choose = random.Random(seed)
    rows = []
    for _ in range(count):
        words = choose.choice([GOOD, BAD])
        middle = ", as always," if choose.random() < 0.5 else ""
        rows.append((f"{choose.choice(PARTS)}{middle} is {choose.choice(words)}", int(words is GOOD)))
    return rows


def write_tsv(path, rows, names=("sentence", "label")):
    path.write_text("\n".join(["\t".join(names), *("\t".join(map(str, row)) for row in rows)]) + "\n")


def word_pieces(texts):
    """BERT's tokeniser, with a vocabulary of these texts."""
    tokenizer = tokenizers.BertWordPieceTokenizer(lowercase=True)
    tokenizer.train_from_iterator(texts, vocab_size=120, special_tokens=SPECIAL, show_progress=False)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer._tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]", mask_token="[MASK]")


def byte_level(texts):
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(texts, vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer, eos_token="<|endoftext|>",
                                                bos_token="<|endoftext|>", unk_token="<|endoftext|>")


def encoder_folder(folder, name, texts, vocab_only=False, dropout=0.0, attention_dropout=0.0, class_dropout=0.0):
    """A small BERT or DistilBERT that has only been initialised, as the folder of a masked-language model."""
    tokenizer = word_pieces(texts)
    torch.manual_seed(5)
    sizes = dict(vocab_size=len(tokenizer), max_position_embeddings=24)
    if name == "bert":
        config = transformers.BertConfig(num_hidden_layers=2, hidden_size=32, num_attention_heads=2,
                                         intermediate_size=64, hidden_dropout_prob=dropout,
                                         attention_probs_dropout_prob=attention_dropout,
                                         classifier_dropout=class_dropout, **sizes)
        model = transformers.BertForMaskedLM(config)
    else:
        config = transformers.DistilBertConfig(n_layers=2, dim=32, n_heads=2, hidden_dim=64, dropout=dropout,
                                               attention_dropout=attention_dropout,
                                               seq_classif_dropout=class_dropout, **sizes)
        model = transformers.DistilBertForMaskedLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if vocab_only:  # as old folders are: vocab.txt and no tokenizer.json
        words = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
        (folder / "vocab.txt").write_text("".join(word + "\n" for word, _ in words))
        for file in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
            (folder / file).unlink(missing_ok=True)
    return folder


SETTINGS = dict(model_layers=None, model_width=None, model_heads=None, model_context=None, model_init="model",
                train_batch=16, train_steps=60, optim_rate=3e-3, optim_warmup=6, optim_schedule="linear",
                train_validate_every=30, train_threads=1)


@pytest.fixture
def program(tmp_path):
    """The program in a folder with a BERT, training sentences and others for validation."""
    rows = sentences(400, 1)
    texts = [text for text, _ in rows]
    write_tsv(tmp_path / "train.tsv", rows)
    write_tsv(tmp_path / "dev.tsv", sentences(61, 2))
    encoder_folder(tmp_path / "model", "bert", texts)
    return Echelon(tmp_path)


def classify(folder, rows, padding):
    """Mean loss and accuracy of a folder's model, as transformers computes them."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model, report = transformers.AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    batch = tokenizer([text for text, *_ in rows], return_tensors="pt", padding=padding)
    if model.config.model_type == "distilbert":
        batch.pop("token_type_ids", None)
    labels = torch.tensor([row[-1] for row in rows])
    with torch.no_grad():
        logits = model.eval()(**{key: value for key, value in batch.items()}).logits
    return F.cross_entropy(logits, labels).item(), (logits.argmax(1) == labels).float().mean().item(), model.config


@pytest.mark.parametrize("name, vocab_only", [("bert", False), ("distilbert", False), ("bert", True)],
                         ids=["bert", "distilbert", "vocab.txt"])
def test_a_folder_and_a_labelled_file_give_a_folder(tmp_path, name, vocab_only):
    rows, dev = sentences(400, 1), sentences(61, 2)
    write_tsv(tmp_path / "train.tsv", rows)
    write_tsv(tmp_path / "dev.tsv", dev)
    encoder_folder(tmp_path / "model", name, [text for text, _ in rows], vocab_only)
    echelon = Echelon(tmp_path)
    run = echelon.train_well("a", "--json", "summary.json", **SETTINGS, data_source="train.tsv",
                             data_validation_source="dev.tsv")
    config = tomllib.loads((run / "config.toml").read_text())
    assert config["task"]["name"] == "classify" and config["task"]["labels"] == 2
    assert config["data"]["tokenizer"] == str(tmp_path / "model")
    summary = json.loads((tmp_path / "summary.json").read_text())
    loss, accuracy, _ = classify(run / "weights", dev, padding=True)
    assert summary["val_accuracy"] == pytest.approx(accuracy, abs=1e-9)
    assert accuracy > 0.95, "an easy rule was not learnt"
    assert summary["val_loss"] == pytest.approx(loss, abs=1e-5)
    half_way = [line for line in metrics(run) if "val_accuracy" in line and line["step"] == 30]
    assert len(half_way) == 1 and 0 <= half_way[0]["val_f1"] <= 1
    # The run's folder starts another run, which keeps the head.
    again = echelon.train_well("b", **(SETTINGS | dict(model_init=run / "weights", train_steps=1, optim_rate=0)),
                               data_source="train.tsv", data_validation_source="dev.tsv")
    before, after = load_file(run / "weights/model.safetensors"), load_file(again / "weights/model.safetensors")
    assert all(torch.equal(before[key], after[key]) for key in before)


DROPOUT_KEYS = {"bert": ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"),
                "distilbert": ("dropout", "attention_dropout", "seq_classif_dropout")}


@pytest.mark.parametrize("name", DROPOUT_KEYS)
def test_the_folder_determines_dropout_unless_it_is_given(tmp_path, name):
    rows = sentences(60, 1)
    write_tsv(tmp_path / "train.tsv", rows)
    encoder_folder(tmp_path / "model", name, [text for text, _ in rows], dropout=0.1, attention_dropout=0.15,
                   class_dropout=0.3)
    echelon = Echelon(tmp_path)
    settings = SETTINGS | dict(data_source="train.tsv", train_steps=3, train_validate_every=0)
    runs = {given: echelon.train_well(f"given-{given}", **settings, model_dropout=given) for given in (None, 0.1, 0.0)}
    for given, run in runs.items():
        used = 0.1 if given is None else given
        assert tomllib.loads((run / "config.toml").read_text())["model"]["dropout"] == used
        config = json.loads((run / "weights/config.json").read_text())
        assert tuple(config[key] for key in DROPOUT_KEYS[name]) == (used, 0.15, 0.3)
    assert metrics(runs[None]) == metrics(runs[0.1]) != metrics(runs[0.0])
    # Written back, the shares start another run.
    again = echelon.train_well("again", **(settings | dict(model_init=runs[None] / "weights")))
    assert tomllib.loads((again / "config.toml").read_text())["model"]["dropout"] == 0.1


def new_head(result):
    """What the beginning of a run says about new heads, None if nothing."""
    assert result.returncode == 0, result.stdout + result.stderr
    found = re.search(r"^head +(.*\n(?: +.*\n)*)", result.stdout, re.MULTILINE)
    assert not found or max(map(len, found[0].splitlines())) <= 80, result.stdout
    return found and " ".join(found[1].split())


def test_the_first_lines_of_a_run_name_a_new_head(program):
    settings = SETTINGS | dict(data_source="train.tsv", train_steps=2, train_validate_every=0)
    says = "has no pooler and no classifier: new ones from train.seed"
    for ranks in (1, 2):
        run = f"whole-{ranks}"
        assert new_head(program.train("--name", run, "--nproc", ranks, **settings)) == f"model {says}"
        assert new_head(program.train(**(settings | dict(model_init=f"runs/{run}/weights")))) is None
        assert new_head(program("train", "--resume", f"runs/{run}", "--set", "train.steps=3")) is None
    assert new_head(program.train(**settings, task_name="mlm")) is None, "the folder has this head"
    # An adapter brings the head that its base does not have.
    lora = settings | {"model.lora.rank": 2, "model.lora.merge": False}
    assert new_head(program.train("--name", "lora", **lora)) == f"model {says}"
    for where in (dict(model_init="runs/lora/weights"), {"model.lora.init": "runs/lora/weights"}):
        assert new_head(program.train(**(settings | where))) is None, where


def test_lora_refuses_a_new_head_for_masked_words(program):
    model = program.folder / "model"
    transformers.BertModel.from_pretrained(model).save_pretrained(program.folder / "bare")
    transformers.AutoTokenizer.from_pretrained(model).save_pretrained(program.folder / "bare")
    words = dict(task_name="mlm", data_source="train.tsv", train_steps=2, train_validate_every=0)
    lora = {"model.lora.rank": 2}
    for ranks in (1, 2):
        said = refusal(program, "--nproc", ranks, **words, **lora, model_init="bare")
        assert "bare has no head for masked words, and with model.lora.rank a new one would stay random" in said, said
        assert "set model.lora.rank=0" in said, said
    assert new_head(program.train(**(SETTINGS | words | dict(model_init="bare")))) == (
        "bare has no head for masked words: a new one from train.seed")
    program.train_well("a", **(SETTINGS | words | lora))


def test_ranks_with_zero_train_what_one_process_trains(program):
    data = dict(data_source="train.tsv", data_validation_source="dev.tsv", train_steps=20)
    alone = metrics(program.train_well("alone", **(SETTINGS | data)))
    both = metrics(program.train_well("both", "--nproc", 2, **(SETTINGS | data), parallel_zero=3))
    assert len(alone) == len(both) and alone[-1].keys() == both[-1].keys()
    for one, other in zip(alone, both):
        for key in one:
            assert one[key] == pytest.approx(other[key], rel=2e-4, abs=1e-6), (key, one, other)


@pytest.mark.parametrize("balance", ["time", "memory"])
def test_a_pipeline_trains_masked_words_with_layers_balanced_by_a_measurement(tmp_path, balance):
    echelon = Echelon(tmp_path)
    settings = dict(model_family="bert", model_vocab=64, model_layers=2, data_source="random", train_micro_batches=2)
    alone = echelon.train_well("alone", **settings)
    job = echelon.train_well("job", "--nproc", 2, **settings, parallel_pipeline=2, pipeline_balance=balance)
    assert [line["loss"] for line in metrics(job)] == pytest.approx([line["loss"] for line in metrics(alone)], abs=1e-4)


@pytest.mark.parametrize("balance", ["time", "memory"])
def test_a_pipeline_trains_answers_with_layers_balanced_by_a_measurement(tmp_path, balance):
    rows = [{"prompt": text, "answer": " good" if label else " bad"} for text, label in sentences(40, 3)]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    byte_level([text for text, _ in sentences(40, 3)]).save_pretrained(tmp_path / "tokenizer")
    echelon = Echelon(tmp_path)
    settings = dict(model_layers=2, data_source="answers.jsonl", data_tokenizer="tokenizer", train_micro_batches=2)
    alone = echelon.train_well("alone", **settings)
    job = echelon.train_well("job", "--nproc", 2, **settings, parallel_pipeline=2, pipeline_balance=balance)
    assert [line["loss"] for line in metrics(job)] == pytest.approx([line["loss"] for line in metrics(alone)], abs=1e-4)


def test_a_resumed_run_goes_on_with_the_same_bits(program):
    data = dict(data_source="train.tsv", task_name="mlm", train_steps=8, optim_schedule="constant")
    whole = program.train_well("whole", **(SETTINGS | data))
    half = program.train_well("half", **(SETTINGS | data | dict(train_steps=3)))
    result = program("train", "--resume", half, "--set", "train.steps=8")
    assert result.returncode == 0, result.stderr
    losses = [[line["loss"] for line in metrics(run) if "loss" in line] for run in (whole, half)]
    assert losses[0] == losses[1]


def test_labels_may_be_names_and_records_csv_or_json(program, tmp_path):
    names = {0: "thumbs down", 1: "thumbs up"}
    rows = sentences(60, 3)
    (tmp_path / "a.csv").write_text("stars,review\n" + "".join(f'{names[label]},"{text}"\n' for text, label in rows))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"review": text, "stars": names[label]}) + "\n"
                                              for text, label in rows))
    columns = dict(data_text="review", data_label="stars", task_name="classify", train_steps=2, train_validate_every=2)
    runs = [program.train_well(end, **(SETTINGS | columns), data_source=f"a.{end}") for end in ("csv", "jsonl")]
    assert metrics(runs[0]) == metrics(runs[1])
    config = json.loads((runs[0] / "weights/config.json").read_text())
    assert config["id2label"] == {"0": "thumbs down", "1": "thumbs up"}
    assert config["label2id"] == {"thumbs down": 0, "thumbs up": 1}
    assert config["pad_token_id"] == 0
    # 5 % of 60 records are held out, always the same.
    assert "57 texts to train on, 3 texts to validate" in program.train(
        **(SETTINGS | columns), data_source="a.csv").stdout


def test_pairs_have_token_types(program, tmp_path):
    choose = random.Random(4)
    rows = []
    for _ in range(300):
        first, second = choose.choice(GOOD + BAD), choose.choice(GOOD + BAD)
        rows.append((first, second, int((first in GOOD) == (second in GOOD))))
    write_tsv(tmp_path / "pairs.tsv", rows, ("question", "answer", "label"))
    run = program.train_well("a", "--json", "out.json", **(SETTINGS | dict(train_steps=4)), data_source="pairs.tsv",
                             data_text="question", data_pair="answer", data_validation_source="pairs.tsv")
    tokenizer = transformers.AutoTokenizer.from_pretrained(run / "weights")
    batch = tokenizer([a for a, _, _ in rows], [b for _, b, _ in rows], return_tensors="pt", padding=True,
                      return_token_type_ids=True)
    assert batch["token_type_ids"].sum() > 0
    model = transformers.AutoModelForSequenceClassification.from_pretrained(run / "weights").eval()
    with torch.no_grad():
        loss = F.cross_entropy(model(**batch).logits, torch.tensor([label for *_, label in rows])).item()
    assert json.loads((tmp_path / "out.json").read_text())["val_loss"] == pytest.approx(loss, abs=1e-5)


def test_masked_words_are_learnt_from_lines_and_from_records(program, tmp_path):
    (tmp_path / "lines.txt").write_text("\n\n".join(text for text, _ in sentences(300, 6)) + "\n")
    last = {}
    for source in ("lines.txt", "train.tsv"):
        run = program.train_well(source, "--json", "out.json", **(SETTINGS | dict(train_steps=40)), data_source=source,
                                 task_name="mlm")
        model = transformers.AutoModelForMaskedLM.from_pretrained(run / "weights")
        assert model.config.vocab_size == len(transformers.AutoTokenizer.from_pretrained(run / "weights"))
        last[source] = json.loads((tmp_path / "out.json").read_text())
    for summary in last.values():
        assert summary["val_accuracy"] > 0.3, last
        assert summary["val_perplexity"] == pytest.approx(2.718281828 ** summary["val_loss"], rel=1e-6)


def test_a_model_from_nothing_takes_its_vocabulary_from_the_tokeniser(program):
    vocab = len(transformers.AutoTokenizer.from_pretrained(program.folder / "model"))
    settings = SETTINGS | dict(model_init=None, model_family="bert", model_layers=1, model_width=32, model_heads=2,
                               model_context=32, data_tokenizer="model", train_steps=2, data_source="train.tsv")
    run = program.train_well("a", "--nproc", 2, **settings)
    config = tomllib.loads((run / "config.toml").read_text())
    assert config["model"]["vocab"] == vocab and config["task"]["labels"] == 2
    assert transformers.AutoModelForSequenceClassification.from_pretrained(run / "weights").config.vocab_size == vocab
    result = program("train", run / "config.toml", "--name", "b")
    assert result.returncode == 0, result.stderr
    assert len(metrics(program.folder / "runs/b")) == len(metrics(run))
    dry = program.train("--dry-run", **settings)
    assert dry.returncode == 0, dry.stderr


# ---- Prompts and answers


def questions(count, seed):
    choose = random.Random(seed)
    return [(f"Q: {(a := choose.randint(0, 9))} then {(b := choose.randint(0, 9))}? A:", f" {b} then {a}")
            for _ in range(count)]


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps({"prompt": prompt, "answer": answer}) + "\n" for prompt, answer in rows))


@pytest.fixture
def answering(tmp_path):
    rows = questions(300, 1)
    write_jsonl(tmp_path / "train.jsonl", rows)
    write_jsonl(tmp_path / "dev.jsonl", questions(40, 2))
    tokenizer = byte_level([prompt + answer for prompt, answer in rows])
    torch.manual_seed(5)
    config = transformers.GPT2Config(vocab_size=len(tokenizer), n_positions=32, n_embd=32, n_layer=2, n_head=2,
                                     bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return Echelon(tmp_path)


ANSWERING = SETTINGS | dict(data_source="train.jsonl", data_validation_source="dev.jsonl", train_steps=40)


def answer_loss(folder, rows):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    loss, tokens = 0.0, 0
    for prompt, answer in rows:
        before, after = tokenizer(prompt)["input_ids"], tokenizer(answer)["input_ids"] + [tokenizer.eos_token_id]
        with torch.no_grad():
            logits = model(torch.tensor([before + after])).logits[0]
        loss += F.cross_entropy(logits[len(before) - 1:-1], torch.tensor(after), reduction="sum").item()
        tokens += len(after)
    return loss / tokens


def test_answers_alone_have_a_loss(answering, tmp_path):
    run = answering.train_well("a", "--json", "out.json", **ANSWERING)
    summary = json.loads((tmp_path / "out.json").read_text())
    assert summary["val_loss"] == pytest.approx(answer_loss(run / "weights", questions(40, 2)), abs=1e-5)
    assert summary["val_perplexity"] == pytest.approx(2.718281828 ** summary["val_loss"], rel=1e-6)
    both = answering.train_well("both", "--nproc", 2, **ANSWERING, parallel_zero=3)
    for one, other in zip(metrics(run), metrics(both)):
        assert one["loss" if "loss" in one else "val_loss"] == pytest.approx(
            other["loss" if "loss" in other else "val_loss"], rel=2e-4)


def test_generated_text_goes_on_after_the_prompt_and_ends_at_the_end_token(answering):
    run = answering.train_well("a", **(ANSWERING | dict(train_steps=120, optim_rate=1e-2)))
    result = answering("generate", run / "weights", "--prompt", "Q: 3 then 4? A:", "--temperature", 0, "--tokens", 30)
    assert result.returncode == 0, result.stderr
    assert re.fullmatch(r"Q: 3 then 4\? A: \d then \d\n", result.stdout), result.stdout
    exported = answering("export", run, "-o", "exported")
    assert exported.returncode == 0, exported.stderr
    for file in (run / "weights").iterdir():
        assert (answering.folder / "exported" / file.name).read_bytes() == file.read_bytes(), file.name


def test_generated_characters_are_whole(answering):
    """A model that has learnt nothing writes bytes of many characters; what comes out is UTF-8, whatever they are."""
    result = answering("generate", "model", "--prompt", "é", "--temperature", 5, "--top", 0, "--tokens", 60)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("é")


def test_text_is_read_with_the_tokeniser_beside_the_weights(answering, tmp_path, text):
    (tmp_path / "book.txt").write_text(text)
    run = answering.train_well("a", "--json", "out.json", **(SETTINGS | dict(data_source="book.txt", train_steps=3)))
    summary = json.loads((tmp_path / "out.json").read_text())
    tokenizer = transformers.AutoTokenizer.from_pretrained(run / "weights")
    held_out = text[len(text) - int(len(text) * 0.05):]
    tokens = len(tokenizer(held_out)["input_ids"])
    bits = summary["val_loss"] / 0.6931471805599453 * tokens / len(held_out)
    assert summary["val_bits_per_byte"] == pytest.approx(bits, rel=1e-3)


# ---- What is refused


def refusal(program, *arguments, **settings):
    result = program.train(*arguments, **(SETTINGS | settings))
    assert result.returncode == 2, result.stdout + result.stderr
    assert result.stderr.count("\n") == 1 and not result.stdout, result.stderr
    assert not (program.folder / "runs").exists()
    return result.stderr


GOOD_ROW = b"this film is warm\t1\n"


@pytest.mark.parametrize("content, says", [
    (b"sentence\tlabel\n" + GOOD_ROW + b"\n" + GOOD_ROW, "line 3: the line is empty"),
    (b"sentence\tlabel\n" + GOOD_ROW + b"caf\xe9\t0\n", "line 3: byte 4 of the line, 0xe9, is not UTF-8"),
    (b"sentence\tlabel\n" + GOOD_ROW + b"dull\n", "line 3: the line has 1 column and the first has 2"),
    (b"sentence\tlabel\n" + GOOD_ROW + b"  \t0\n", "line 3: the sentence is empty"),
    (b"sentence\tlabel\n" + GOOD_ROW + GOOD_ROW, "has the label 1 only"),
    (b"sentence\tlabel\n" + GOOD_ROW + b"dull\t2\n", "line 2: there is a label 1 and none is 0"),
    (b"sentence\tlabel\n" + GOOD_ROW + b"dull\t-1\n", "line 3: label -1 is below 0"),
    (b"review\tlabel\n" + GOOD_ROW + b"dull\t0\n", "has no column sentence or text; it has review, label"),
    (b"sentence\tlabel\n", "has a header and no record"),
    (b"", "is empty"),
])
def test_a_bad_file_is_refused_with_its_line(program, content, says):
    (program.folder / "bad.tsv").write_bytes(content)
    said = refusal(program, data_source="bad.tsv", task_name="classify")
    assert "bad.tsv" in said and says in said, said


def test_labels_that_training_does_not_have_are_refused(program):
    (program.folder / "dev.tsv").write_text("sentence\tlabel\nthis film is warm\t1\ndull\t2\n")
    assert "dev.tsv, line 3: label 2 is unknown: the labels of" in refusal(
        program, data_source="train.tsv", data_validation_source="dev.tsv")


def test_validation_data_of_another_task_than_the_training_data_are_refused(answering):
    (answering.folder / "texts.jsonl").write_text('{"text": "Q: 1 then 2?"}\n' * 40)
    assert "texts.jsonl has no column prompt; it has text: name the column with data.prompt" in refusal(
        answering, data_source="train.jsonl", data_validation_source="texts.jsonl")
    assert "dev.jsonl has no column sentence or text; it has prompt, answer: name the column with" in refusal(
        answering, data_source="texts.jsonl", data_validation_source="dev.jsonl")


def test_documents_without_a_token_to_put_between_them_are_refused(answering):
    (answering.folder / "texts.jsonl").write_text('{"text": "Q: 1 then 2?"}\n' * 40)
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(["Q: 1 then 2?"], vocab_size=260, show_progress=False)
    (answering.folder / "unmarked").mkdir()
    tokenizer.save(str(answering.folder / "unmarked/tokenizer.json"))
    said = refusal(answering, data_source="texts.jsonl", data_tokenizer="unmarked", model_init=None,
                   model_family="gpt2", model_layers=1, model_width=32, model_heads=2, model_context=16)
    assert "unmarked/tokenizer.json has no token that begins or ends a text" in said, said


def test_a_prompt_without_tokens_is_refused_with_its_line(answering):
    file = answering.folder / "model/tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {
        "normalizer": {"type": "Replace", "pattern": {"String": "#"}, "content": ""}}))
    write_jsonl(answering.folder / "bad.jsonl", [*questions(3, 1), ("##", " 1")])
    said = refusal(answering, data_source="bad.jsonl")
    assert "bad.jsonl, line 4: the sample has 0 tokens of a prompt and 2 of an answer" in said or (
        "bad.jsonl, line 4: the sample has 0 tokens of a prompt and 3 of an answer" in said), said


@pytest.mark.parametrize("settings, says", [
    (dict(data_source="train.tsv", data_label="stars"), "has no column stars; its columns are: sentence, label"),
    (dict(data_source="train.tsv", data_tokenizer="nowhere"), "nowhere"),
    (dict(data_source="train.tsv", data_tokenizer="bytes"), "leave data.tokenizer out"),
    (dict(data_source="train.tsv", data_length=25), "data.length = 25 is more than model.context = 24"),
    (dict(data_source="train.tsv", task_labels=1), "2 labels at least"),
    (dict(data_source="text.txt", task_name="classify"), "task.name=classify needs labels"),
    (dict(data_source="text.txt", data_label="label"), "data.label = label is a column of records"),
    (dict(data_source="train.tsv", task_name="causal"), "can only do mlm and classify"),
    (dict(data_mix="[\"train.tsv\"]"), "each entry is a source and its weight"),
    (dict(data_source="train.tsv", model_init=None, model_family="bert", task_name="classify"), "read with a tokeniser"),
    (dict(data_source="train.tsv", model_init=None), "read with a tokeniser"),
])
def test_what_does_not_go_together_is_refused(program, text, settings, says):
    (program.folder / "text.txt").write_text(text)
    if "data_mix" in settings:
        settings = settings | dict(data_source=None)
    said = refusal(program, **settings)
    assert says in said, said


def test_a_tokeniser_of_another_model_is_refused(program):
    config = program.folder / "model/config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"vocab_size": 50}))
    said = refusal(program, data_source="train.tsv")
    assert "the model's embedding has 50" in said and "use the one that the weights were trained with" in said, said
    assert "set model.vocab=" in refusal(program, data_source="train.tsv", model_init=None, model_family="bert",
                                         model_vocab=50, data_tokenizer="model", model_context=24)


def test_encoders_do_not_generate(program):
    result = program("generate", "model")
    assert result.returncode == 2 and "is an encoder" in result.stderr and result.stderr.count("\n") == 1
    shutil.rmtree(program.folder / "model")
    assert program("generate", "model").returncode == 2
