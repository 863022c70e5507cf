"""Ids and offsets against `tokenizers` on 200,000 texts for each of the tokenisers that people bring, fewer for the others.
ECHELON_TOKENIZER_TEXTS sets another number."""

import os

import pytest

from _tokenizers import CONFIGURATIONS, compare, texts

COUNT = int(os.environ.get("ECHELON_TOKENIZER_TEXTS", 200_000))
COMMON = ("bert-uncased", "bert-cased", "gpt2", "llama3", "llama3-added")
CHUNK = 20_000  # what is in memory at once


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_ids_and_offsets_are_the_same_on_many_texts(name, tmp_path):
    path = tmp_path / "tokenizer.json"
    theirs = CONFIGURATIONS[name]()
    theirs.save(str(path))
    theirs = type(theirs).from_file(str(path))
    count = COUNT if name in COMMON else COUNT // 5
    for seed in range(0, count, CHUNK):
        compare(path, theirs, texts.__wrapped__(min(CHUNK, count - seed), 100 + seed))
