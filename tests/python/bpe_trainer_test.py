"""`echelon tokenize train` against Hugging Face's trainer: the same tokenizer.json, to the last merge."""

import json
import random
import sysconfig
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SHAKESPEARE = Path(__file__).resolve().parents[3] / "shared" / "data" / "tinyshakespeare.txt"
STDLIB = Path(sysconfig.get_path("stdlib"))
SPECIAL = ["<|endoftext|>"]


def reference(path, vocab, files=None, texts=None, min_frequency=0, special=SPECIAL):
    """The tokeniser that Hugging Face's library trains on files, line by line, or on whole texts; its file as an object."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, min_frequency=min_frequency, special_tokens=special,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    if files:
        tokenizer.train([str(file) for file in files], trainer)
    else:
        tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))
    return json.loads(path.read_text())


def trained(echelon, folder, *arguments):
    result = echelon("tokenize", "train", *arguments, "-o", folder)
    assert result.returncode == 0, result.stdout + result.stderr
    return json.loads((folder / "tokenizer.json").read_text())


def same(ours, theirs):
    """Compares the merges first: their first difference says more than two long texts."""
    pairs = list(zip(ours["model"]["merges"], theirs["model"]["merges"]))
    first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    assert first is None, f"merge {first} is {pairs[first][0]} and should be {pairs[first][1]}"
    assert len(ours["model"]["merges"]) == len(theirs["model"]["merges"])
    assert ours == theirs


def words(rng, count):
    """Text with words of many scripts, whitespace of all kinds, and counts with many ties."""
    pieces = ["the", "There", "don't", "we'll", "naïve", "Straße", "漢字かな", "한국어", "Ελλάδα", "русский", "שלום", "😀😃", "3.14",
              "1234567", "__init__", "==", "...", "<|endoftext|>", "\u00a0", "\u3000", "\t", "  ", "\n", "\n\n    ", "\r\n", "a" * 9,
              "ab" * 4, "\u0301", "ı", "²", "\x00", "\x7f"]
    return "".join(rng.choice(pieces) + rng.choice(["", " ", " ", "\n"]) for _ in range(count))


@pytest.mark.parametrize("seed", range(12))
def test_few_letters_have_ties_and_tokens_that_arise_twice(echelon, seed):
    rng = random.Random(seed)
    file = echelon.folder / "a.txt"
    file.write_text("".join(rng.choice("ab "[:2 + seed % 2]) + rng.choice(["", "", "ba", " "]) for _ in range(500 + 200 * seed)))
    vocab, least = 257 + 60 * (1 + seed), seed % 3
    ours = trained(echelon, echelon.folder / "ours", file, "--vocab", vocab, "--min-frequency", least)
    same(ours, reference(echelon.folder / "theirs.json", vocab, files=[file], min_frequency=least))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("across", [False, True], ids=["lines", "whole"])
def test_all_scripts(echelon, seed, across):
    rng = random.Random(100 + seed)
    files = [echelon.folder / f"{i}.txt" for i in range(3)]
    for file in files:
        file.write_text(words(rng, 3000), newline="")
    ours = trained(echelon, echelon.folder / "ours", *files, "--vocab", 700, *(["--across-lines"] if across else []))
    texts = [file.read_bytes().decode() for file in files]
    same(ours, reference(echelon.folder / "theirs.json", 700, **(dict(texts=texts) if across else dict(files=files))))


@pytest.mark.parametrize("across", [False, True], ids=["lines", "whole"])
def test_the_standard_librarys_sources(echelon, across):
    files = sorted(STDLIB.glob("[a-m]*.py"))
    assert len(files) > 50
    ours = trained(echelon, echelon.folder / "ours", *files, "--vocab", 6000, *(["--across-lines"] if across else []))
    texts = [file.read_bytes().decode() for file in files]
    same(ours, reference(echelon.folder / "theirs.json", 6000, **(dict(texts=texts) if across else dict(files=files))))


@pytest.mark.skipif(not SHAKESPEARE.exists(), reason="shared/data/tinyshakespeare.txt is not here")
def test_tiny_shakespeare(echelon):
    ours = trained(echelon, echelon.folder / "ours", SHAKESPEARE, "--vocab", 8192)
    same(ours, reference(echelon.folder / "theirs.json", 8192, files=[SHAKESPEARE]))


def test_records_are_texts(echelon):
    rng = random.Random(5)
    texts = [words(rng, rng.randrange(1, 40)) for _ in range(500)]
    (echelon.folder / "a.jsonl").write_text("".join(json.dumps({"n": 1, "text": text}) + "\n" for text in texts))
    ours = trained(echelon, echelon.folder / "ours", "a.jsonl", "--text", "text", "--vocab", 600)
    same(ours, reference(echelon.folder / "theirs.json", 600, texts=texts))


def test_a_long_file_is_cut_where_it_changes_nothing(echelon):
    """Batches are 1 MiB; the cuts between them must not show, also where lines and words are long."""
    rng = random.Random(6)
    text = "".join(words(rng, 400) + "x" * rng.randrange(3000) + "\u3000" * rng.randrange(3) for _ in range(900))
    assert len(text.encode()) > 3 << 20
    file = echelon.folder / "a.txt"
    file.write_text(text, newline="")
    lines = trained(echelon, echelon.folder / "lines", file, "--vocab", 400, "--threads", 3)
    same(lines, reference(echelon.folder / "theirs.json", 400, files=[file]))
    whole = trained(echelon, echelon.folder / "whole", file, "--vocab", 400, "--threads", 3, "--across-lines")
    same(whole, reference(echelon.folder / "theirs.json", 400, texts=[text]))
    assert whole != lines


def test_special_tokens_come_first_and_may_spell_what_is_merged(echelon):
    (echelon.folder / "a.txt").write_text("the then the there a b " * 50)
    special = ["<pad>", "the", "a", "<|endoftext|>"]
    arguments = [word for token in special for word in ("--special", token)]
    ours = trained(echelon, echelon.folder / "ours", "a.txt", "--vocab", 300, *arguments)
    same(ours, reference(echelon.folder / "theirs.json", 300, files=[echelon.folder / "a.txt"], special=special))
    assert [ours["model"]["vocab"][token] for token in special] == [0, 1, 2, 3]


def test_any_number_of_threads_writes_the_same_bytes(echelon):
    files = sorted(STDLIB.glob("[a-d]*.py"))
    written = set()
    for threads in (1, 2, 5):
        folder = echelon.folder / f"t{threads}"
        trained(echelon, folder, *files, "--vocab", 2000, "--threads", threads)
        written.add(tuple(path.read_bytes() for path in sorted(folder.iterdir())))
    assert len(written) == 1


def test_the_folder_opens_in_transformers(echelon):
    from transformers import AutoTokenizer

    files = sorted(STDLIB.glob("[a-b]*.py"))
    folder = echelon.folder / "ours"
    trained(echelon, folder, *files, "--vocab", 1000)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = files[0].read_text()
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer(text)["input_ids"] == Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    assert tokenizer.eos_token == "<|endoftext|>" and tokenizer.eos_token_id == 0


# ---- Mistakes


@pytest.mark.parametrize("name, content, arguments, says", [
    ("a.txt", b"some text", ["--vocab", "256"],
     "a vocabulary of 256 tokens is too small: the bytes need 256 and the special tokens 1, so it must have at least 257"),
    ("a.txt", b"", [], "there is no text to train a tokeniser on"),
    ("a.txt", b"fine \xff\xfe", [], "a.txt: byte 5, 0xff, is not UTF-8; convert the file"),
    ("a.txt", b"caf\xc3", [], "a.txt: byte 3, 0xc3, is not UTF-8; convert the file"),
    ("b.txt", b"x", [], "there is no file or folder a.txt to read text from"),
    ("a.txt", b"x", ["--special", "<a>", "--special", "<a>"], "the special token <a> is given twice"),
    ("a.txt", b"x", ["--text", "sentence"],
     "the column sentence is given, and no file has records: their names end with .tsv, .csv or .jsonl"),
    ("a.txt", b"x", ["--min-frequency", "-1"], "--min-frequency"),
], ids=range(8))
def test_a_mistake_is_named_and_nothing_is_written(echelon, name, content, arguments, says):
    (echelon.folder / name).write_bytes(content)
    result = echelon("tokenize", "train", "a.txt", "-o", "out", *arguments)
    assert result.returncode == 2, result.stdout + result.stderr
    assert says in result.stderr and result.stderr.count("\n") == 1
    assert not (echelon.folder / "out").exists()


def test_records_need_a_column(echelon):
    (echelon.folder / "a.tsv").write_text("sentence\tlabel\nfine\t1\n")
    for arguments, says in [([], "a.tsv has records: name the column of the text, as in --text sentence"),
                            (["--text", "text"], "a.tsv has no column text; its columns are: sentence, label")]:
        result = echelon("tokenize", "train", "a.tsv", "-o", "out", *arguments)
        assert result.returncode == 2 and says in result.stderr, result.stderr
    assert not (echelon.folder / "out").exists()


def test_a_tokeniser_is_overwritten_only_on_request(echelon):
    (echelon.folder / "a.txt").write_text("one two one two")
    trained(echelon, echelon.folder / "out", "a.txt", "--vocab", 260)
    before = (echelon.folder / "out" / "tokenizer.json").read_bytes()
    result = echelon("tokenize", "train", "a.txt", "-o", "out", "--vocab", "258")
    assert result.returncode == 2 and "overwrite it with --force" in result.stderr
    assert (echelon.folder / "out" / "tokenizer.json").read_bytes() == before
    for name in ("tokenizer_config.json", "vocab.txt"):  # of a model's folder
        other = echelon.folder / f"with_{name}"
        other.mkdir()
        (other / name).write_text("{}")
        result = echelon("tokenize", "train", "a.txt", "-o", other.name, "--vocab", "258")
        assert result.returncode == 2 and f"{name} exists" in result.stderr
        assert [path.name for path in other.iterdir()] == [name] and (other / name).read_text() == "{}"
    trained(echelon, echelon.folder / "out", "a.txt", "--vocab", 258, "--force")
    assert (echelon.folder / "out" / "tokenizer.json").read_bytes() != before
