"""`echelon tokenize corpus`: its files, read here by docs/formats.md alone, have the tokens of Hugging Face's tokenizers."""

import csv
import json
import random
import signal
import struct
import sysconfig
import time
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from _tokenizers import slow_tokenizer
from bpe_trainer_test import words

STDLIB = Path(sysconfig.get_path("stdlib"))


def gpt2_like(vocab=600, extra=()):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=["<|endoftext|>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([words(random.Random(1), 3000)], trainer)
    tokenizer.add_tokens(list(extra))
    return tokenizer


def bert_like():
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "there", "##re", "don", "'", "t", "a", "##a", "##b", "rank",
                  "漢", "字", "is", "##is", ".", "=", "3", "##4", "##1", "naive", "1", "##2", "<", ">", "|"]
    tokenizer = Tokenizer(models.WordPiece({token: i for i, token in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(vocabulary[:5])
    return tokenizer


@pytest.fixture
def save(tmp_path):
    def save(tokenizer):
        folder = tmp_path / "tokenizer"
        folder.mkdir(exist_ok=True)
        tokenizer.save(str(folder / "tokenizer.json"))
        return folder

    return save


def make(echelon, *arguments, folder="corpus"):
    result = echelon("tokenize", "corpus", *arguments, "-o", folder)
    assert result.returncode == 0, result.stdout + result.stderr
    return echelon.folder / folder


def read(folder):
    """All documents of a corpus, and its description."""
    description = json.loads((folder / "corpus.json").read_text())
    documents = []
    for i, listed in enumerate(description["shards"]):
        data = (folder / f"shard-{i:05}.tokens").read_bytes()
        assert data[:8] == b"ECTOKENS" and data[-8:] == b"ECTOKEND"
        version, size = struct.unpack("<II", data[8:16])
        tokens, count, checksum = struct.unpack("<QQQ", data[-32:-8])
        assert (version, size) == (1, description["token_bytes"])
        assert (tokens, count, f"{checksum:016x}") == (listed["tokens"], listed["documents"], listed["checksum"])
        begins = 16 + -(-tokens * size // 8) * 8
        assert begins + 8 * count + 32 == len(data)
        ends = struct.unpack(f"<{count}Q", data[begins:-32])
        ids = struct.unpack(f"<{tokens}{'H' if size == 2 else 'I'}", data[16:16 + tokens * size])
        documents += [list(ids[a:b]) for a, b in zip((0, *ends), ends)]
    assert sum(map(len, documents)) == description["tokens"] and len(documents) == description["documents"]
    return documents, description


def refused(echelon, says, *arguments, folder="corpus"):
    before = sorted(echelon.folder.rglob("*"))
    result = echelon("tokenize", "corpus", *arguments, "-o", folder)
    assert result.returncode == 2, result.stdout + result.stderr
    assert says in result.stderr and result.stderr.count("\n") == 1, result.stderr
    assert sorted(echelon.folder.rglob("*")) == before


@pytest.mark.parametrize("make_tokenizer", [gpt2_like, bert_like])
def test_every_document_has_the_tokens_of_tokenizers(echelon, save, make_tokenizer):
    tokenizer = make_tokenizer()
    rng = random.Random(3)
    texts = [words(rng, rng.randrange(60)) for _ in range(200)]
    folder = echelon.folder
    (folder / "a.txt").write_text(texts[0], newline="")
    (folder / "b.jsonl").write_text("".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts[1:80])))
    with open(folder / "c.csv", "w", newline="") as out:
        csv.writer(out).writerows([["text", "n"], *([text, "1"] for text in texts[80:])])
    corpus = make(echelon, "a.txt", "b.jsonl", "c.csv", "--text", "text", "--tokenizer", save(tokenizer))
    documents, description = read(corpus)
    for text, document in zip(texts, documents, strict=True):
        assert document == tokenizer.encode(text, add_special_tokens=False).ids, text
    assert description["text_bytes"] == sum(len(text.encode()) for text in texts)
    assert description["files"] == 3
    marks = (0, 0) if make_tokenizer is gpt2_like else (2, 3)
    assert (description["begin"], description["end"]) == marks
    assert description["vocab"] == tokenizer.get_vocab_size()
    checked = echelon("tokenize", "check", corpus)
    assert checked.returncode == 0, checked.stderr


def test_a_long_file_is_one_document(echelon, save):
    tokenizer = gpt2_like()
    text = words(random.Random(4), 400_000)
    assert len(text.encode()) > 2 << 20
    (echelon.folder / "a.txt").write_text(text, newline="")
    documents, _ = read(make(echelon, "a.txt", "--tokenizer", save(tokenizer)))
    assert documents == [tokenizer.encode(text).ids]


def test_large_vocabularies_take_four_bytes(echelon, save):
    tokenizer = gpt2_like(extra=[AddedToken(f"<{i}>", normalized=False) for i in range(65_000)])
    (echelon.folder / "a.txt").write_text("a <64999> b <3>")
    documents, description = read(make(echelon, "a.txt", "--tokenizer", save(tokenizer)))
    assert description["token_bytes"] == 4
    assert documents == [tokenizer.encode("a <64999> b <3>").ids] and max(documents[0]) > 65536


def test_a_corpus_has_its_tokeniser(echelon, save):
    folder = save(gpt2_like())
    corpus = make(echelon, *sorted(STDLIB.glob("a*.py")), "--tokenizer", folder)
    again = make(echelon, *sorted(STDLIB.glob("a*.py")), "--tokenizer", corpus, folder="again")
    assert (corpus / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    for file in corpus.iterdir():
        assert (again / file.name).read_bytes() == file.read_bytes()


def test_damage_is_found(echelon, save):
    corpus = make(echelon, STDLIB / "abc.py", "--tokenizer", save(gpt2_like()))
    shard = corpus / "shard-00000.tokens"
    good = shard.read_bytes()
    for at in (3, 100, len(good) // 2, len(good) - 40, len(good) - 20, len(good) - 1):
        shard.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1:])
        result = echelon("tokenize", "check", corpus)
        assert result.returncode == 2 and result.stderr.count("\n") == 1, f"{at}: {result.stderr}"
        assert "shard-00000.tokens" in result.stderr
    shard.write_bytes(good)
    tokenizer = corpus / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"version": "1.0"', '"version":  "1.0"'))
    result = echelon("tokenize", "check", corpus)
    assert result.returncode == 2 and "is not that of the corpus" in result.stderr


# ---- Ends before the end


def start_long(echelon, save):
    """The program while it writes a corpus; its folder has another name until it is whole."""
    piece = words(random.Random(5), 50_000)
    with open(echelon.folder / "long.txt", "w", newline="") as out:
        for _ in range(120):
            out.write(piece)
    process = echelon.start("tokenize", "corpus", "long.txt", "--tokenizer", save(gpt2_like()), "-o", "corpus", "--threads", 1)
    deadline = time.monotonic() + 60
    while not list(echelon.folder.glob(".corpus.*/.shard-*")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert not (echelon.folder / "corpus").exists()
    return process


def test_an_interrupt_leaves_nothing(echelon, save):
    process = start_long(echelon, save)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert {path.name for path in echelon.folder.iterdir()} <= {"long.txt", "text.txt", "tokenizer"}


def test_a_killed_process_leaves_no_corpus_and_the_next_one_cleans_up(echelon, save):
    process = start_long(echelon, save)
    process.kill()
    process.communicate(timeout=60)
    assert not (echelon.folder / "corpus").exists()
    assert list(echelon.folder.glob(".corpus.*"))
    make(echelon, STDLIB / "abc.py", "--tokenizer", "tokenizer")
    assert not list(echelon.folder.glob(".corpus.*"))


def test_a_run_does_not_remove_the_corpus_of_another_that_ended_first(echelon, save):
    process = start_long(echelon, save)
    corpus = make(echelon, STDLIB / "abc.py", "--tokenizer", "tokenizer")
    first = {file.name: file.read_bytes() for file in corpus.iterdir()}
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2 and "corpus was written by another process in the meantime" in said, said
    assert {file.name: file.read_bytes() for file in corpus.iterdir()} == first
    assert not list(echelon.folder.glob(".corpus.*"))


# ---- Mistakes


def test_mistakes_are_named_and_nothing_is_written(echelon, save):
    folder = save(gpt2_like())
    write = lambda name, text: (echelon.folder / name).write_bytes(text.encode("latin-1"))
    write("good.txt", "fine")
    write("bad.txt", "fine\n\xff")
    write("ragged.tsv", "text\tlabel\none\t1\ntwo\n")
    write("blank.jsonl", '{"text": "one"}\n\n')
    write("empty.txt", "")
    refused(echelon, "there is no file or folder none.txt", "none.txt", "--tokenizer", folder)
    refused(echelon, "bad.txt: byte 5, 0xff, is not UTF-8; convert the file", "good.txt", "bad.txt", "--tokenizer", folder)
    refused(echelon, "ragged.tsv, line 3: the line has 1 column and the first has 2", "ragged.tsv", "--text", "text",
            "--tokenizer", folder)
    refused(echelon, "blank.jsonl, line 2: the line is empty; remove it", "blank.jsonl", "--text", "text", "--tokenizer", folder)
    refused(echelon, "blank.jsonl has no column sentence", "blank.jsonl", "--text", "sentence", "--tokenizer", folder)
    refused(echelon, "there is no text in empty.txt", "empty.txt", "--tokenizer", folder)
    refused(echelon, "tokenizer.json", "good.txt", "--tokenizer", echelon.folder / "nowhere")
    refused(echelon, "has other files than those of a corpus", "good.txt", "--tokenizer", folder, folder=folder)
    (folder / "tokenizer.json").write_text("{")
    refused(echelon, "tokenizer.json", "good.txt", "--tokenizer", folder)


def test_a_text_that_the_tokeniser_refuses_is_named(echelon):
    slow_tokenizer(echelon.folder / "slow")
    texts = ["a", "a" * 40]
    (echelon.folder / "bad.txt").write_text(texts[1])
    (echelon.folder / "bad.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    refused(echelon, "bad.txt: ", "bad.txt", "--tokenizer", "slow")
    refused(echelon, "bad.jsonl, line 2: ", "bad.jsonl", "--text", "text", "--tokenizer", "slow")


def test_a_corpus_is_replaced_only_on_request(echelon, save):
    folder = save(gpt2_like())
    make(echelon, STDLIB / "abc.py", "--tokenizer", folder)
    before, _ = read(echelon.folder / "corpus")
    refused(echelon, "corpus has a corpus; choose another folder with -o, or replace it with --force", STDLIB / "ast.py",
            "--tokenizer", folder)
    assert read(make(echelon, STDLIB / "ast.py", "--tokenizer", folder, "--force"))[0] != before
