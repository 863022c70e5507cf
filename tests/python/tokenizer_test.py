"""Ids and offsets of our tokenisers against Hugging Face's `tokenizers`. tokenizer_long_test.py has more texts."""

import functools
import json
import random

import pytest

from _tokenizers import CONFIGURATIONS, compare, framed, records, run, texts

COUNT = 1000


@functools.cache
def made(name):
    return CONFIGURATIONS[name]()


@pytest.fixture(params=CONFIGURATIONS)
def tokenizer(request, tmp_path):
    """(tokeniser of the package, path of its file)"""
    made(request.param).save(str(tmp_path / "tokenizer.json"))
    return type(made(request.param)).from_file(str(tmp_path / "tokenizer.json")), tmp_path / "tokenizer.json"


def test_ids_and_offsets_are_the_same(tokenizer):
    theirs, path = tokenizer
    compare(path, theirs, texts(COUNT, 1))


def test_pairs_and_texts_without_special_tokens_are_the_same(tokenizer):
    theirs, path = tokenizer
    some = texts(COUNT, 2)[-400:]
    compare(path, theirs, some, pairs=True)
    compare(path, theirs, some, special=False)
    compare(path, theirs, some, special=False, pairs=True)


@pytest.mark.parametrize("direction", ["left", "right"])
def test_cut_and_padded_texts_are_the_same(tokenizer, tmp_path, direction):
    theirs, path = tokenizer
    some = texts(COUNT, 3)[-200:]
    pad = {"direction": direction, "pad_id": 1, "pad_type_id": 0, "pad_token": "pad"}
    for length in (5, 12):
        theirs.enable_truncation(length, direction=direction)
        theirs.enable_padding(length=length + 2, **pad)
        theirs.save(str(path))
        compare(path, theirs, some, max_length=length, pad_to=length + 2)
        compare(path, theirs, some, max_length=length, pad_to=length + 2, pairs=True)


def test_decoded_texts_are_the_same(tokenizer):
    theirs, path = tokenizer
    rng = random.Random(4)
    size = theirs.get_vocab_size()
    lines = [[rng.randrange(size + 3) for _ in range(rng.randrange(1, 20))] for _ in range(200)]
    lines += [e.ids for e in theirs.encode_batch(texts(COUNT, 5)[-200:]) if e.ids]
    for skip in (False, True):
        data = "\n".join(" ".join(map(str, line)) for line in lines).encode()
        out, at, ours = run(path, "decode", int(skip), data=data), 0, []
        while at < len(out):
            end = at + 4 + int.from_bytes(out[at:at + 4], "little")
            ours.append(out[at + 4:end].decode())
            at = end
        for line, mine in zip(lines, ours, strict=True):
            assert mine == theirs.decode(line, skip_special_tokens=skip), line


def beside(kind, n):
    """The configuration, the map of special tokens and the added tokens beside a vocabulary of n tokens."""
    token = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
    added = {"<user>": n, "<pad>": n + 1, "newword": n + 2}
    decoder = {str(i): {**token, "content": text, "lstrip": text == "<pad>"} for text, i in added.items()}
    return {
        "class": ({}, {}, {}),
        "options": ({"do_lower_case": False, "add_prefix_space": True}, {}, {}),
        "added_tokens.json": ({}, {}, added),
        "additional": ({"additional_special_tokens": ["<user>"]}, {}, added),
        "additional of the vocabulary": ({"extra_special_tokens": ["the"]}, {}, {}),
        "special_tokens_map.json": ({}, {"pad_token": "<pad>", "mask_token": {**token, "content": "the"}}, added),
        "added_tokens_decoder": ({"added_tokens_decoder": decoder, "pad_token": "<pad>"}, {}, {"other": n}),
    }[kind]


BESIDE = ["class", "options", "added_tokens.json", "additional", "additional of the vocabulary",
          "special_tokens_map.json", "added_tokens_decoder"]
BERT_CLASSES = ["Bert", "ConvBert", "DistilBert", "Electra", "LayoutLM", "Lxmert", "MobileBert", "SqueezeBert"]


@pytest.mark.parametrize("kind, name", [
    *((kind, name) for name in ("BertTokenizer", "GPT2Tokenizer") for kind in BESIDE),
    *(("class", f"{name}Tokenizer{fast}") for name in BERT_CLASSES for fast in ("", "Fast"))])
def test_vocabularies_are_read_as_transformers_reads_them(tmp_path, kind, name):
    transformers = pytest.importorskip("transformers")
    tokenizer = made("gpt2" if name.startswith("GPT2") else "bert-uncased")
    tokenizer.model.save(str(tmp_path))  # vocab.json and merges.txt, or vocab.txt
    config, special, added = beside(kind, tokenizer.get_vocab_size())
    for file, content in (("tokenizer_config", config | {"tokenizer_class": name}), ("special_tokens_map", special),
                          ("added_tokens", added)):
        (tmp_path / f"{file}.json").write_text(json.dumps(content))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path).backend_tokenizer
    some = texts(COUNT, 6)[-200:] + ["a <user>the newword", "newwords  <pad> x", "<USER>[MASK]<|endoftext|>NEWWORD the"]
    compare(tmp_path, theirs, some)


def test_a_difference_is_noticed(tmp_path):
    """The comparison itself: two tokenisers that differ in one merge."""
    state = json.loads(made("gpt2").to_str())
    merges = state["model"]["merges"]
    merges[0], merges[1] = merges[1], merges[0]
    merges.reverse()
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(state))
    with pytest.raises(AssertionError, match="ours"):
        compare(path, made("gpt2"), texts(COUNT, 1))
    assert records(run(path, "encode", 1, 0, 0, data=framed(["a"])))[0][2] == [(0, 1)]
