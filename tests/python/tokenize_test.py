"""echelon tokenize encode."""

import json
import os
import subprocess

import pytest

from _tokenizers import bert, corpus, gpt2, slow_tokenizer
from conftest import BUILD


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("bert")
    bert().save(str(path / "tokenizer.json"))
    return path


def encode(*arguments, data=b"", **keywords):
    return subprocess.run([BUILD / "echelon", "tokenize", "encode", *map(str, arguments)], input=data, capture_output=True,
                          timeout=120, **keywords)


def ids(result):
    assert result.returncode == 0, result.stderr.decode()
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_each_line_becomes_an_array_of_ids(folder, tmp_path):
    lines = [line for line in corpus() if "\f" not in line]
    file = tmp_path / "text.txt"
    file.write_text("\n".join(lines) + "\n", "utf-8")
    theirs = bert().from_file(str(folder / "tokenizer.json"))
    assert ids(encode("--tokenizer", folder, file)) == [e.ids for e in theirs.encode_batch(lines)]
    assert ids(encode("--tokenizer", folder, "-", "--no-special", data=file.read_bytes())) == [
        e.ids for e in theirs.encode_batch(lines, add_special_tokens=False)]
    theirs.enable_truncation(5)
    assert ids(encode("--tokenizer", folder / "tokenizer.json", file, "--max-length", 5)) == [
        e.ids for e in theirs.encode_batch(lines)]


@pytest.mark.parametrize("text, lines", [("", 0), ("\n", 1), ("a", 1), ("a\n\nb", 3), ("a\r\nb\r\n", 2)])
def test_lines_end_where_they_end(folder, text, lines):
    assert len(ids(encode("--tokenizer", folder, "-", data=text.encode()))) == lines


def test_the_ends_of_lines_do_not_count(folder):
    assert encode("--tokenizer", folder, "-", data=b"a b\r\nc").stdout == encode("--tokenizer", folder, "-", data=b"a b\nc\n").stdout


def test_a_pipe_is_read_once(folder, tmp_path):
    expected = encode("--tokenizer", folder, "-", data=b"a b\nc\n").stdout
    assert expected.count(b"\n") == 2
    assert encode("--tokenizer", folder, "/dev/stdin", data=b"a b\nc\n").stdout == expected
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = subprocess.Popen(["sh", "-c", f"printf 'a b\\nc\\n' > '{fifo}'"])
    assert encode("--tokenizer", folder, fifo).stdout == expected
    assert writer.wait(10) == 0


def peak_mib(folder, file):
    """MiB that the program had at most while it encoded a file."""
    command = [BUILD / "echelon", "tokenize", "encode", "--tokenizer", folder, file]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss / 1024


def test_memory_does_not_grow_with_the_file(folder, tmp_path):
    one = "".join(f"{line}\n" for line in corpus()).encode()
    small, large = tmp_path / "small.txt", tmp_path / "large.txt"
    small.write_bytes(one * (10_000_000 // len(one)))
    large.write_bytes(one * (40_000_000 // len(one)))
    assert peak_mib(folder, large) < peak_mib(folder, small) + 15


@pytest.mark.parametrize("text, message", [(b"fine\nnot \xff fine\n", "line 2: byte 5 is 0xff"), (b"\xed\xa0\x80", "line 1"),
                                           (b"x\n" * 3_000_000 + b"\xff", "line 3000001")])
def test_a_file_that_is_not_utf8_is_refused_before_anything_is_written(folder, tmp_path, text, message):
    file = tmp_path / "bad.txt"
    file.write_bytes(text)
    result = encode("--tokenizer", folder, file)
    assert (result.returncode, result.stdout) == (2, b"")
    assert message in result.stderr.decode() and result.stderr.count(b"\n") == 1
    assert encode("--tokenizer", folder, "-", data=text).returncode == 2


def test_a_line_that_the_tokeniser_refuses_is_named(tmp_path):
    slow_tokenizer(tmp_path / "slow")
    file = tmp_path / "text.txt"
    file.write_text("a\n" * 200 + "a" * 40 + "\n" + "a\n" * 200)
    result = encode("--tokenizer", tmp_path / "slow", file)
    assert (result.returncode, result.stdout) == (2, b"")
    assert "text.txt, line 201: " in result.stderr.decode() and result.stderr.count(b"\n") == 1, result.stderr


def test_mistakes_are_one_sentence(folder, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("a\n")
    unigram = tmp_path / "unigram"
    unigram.mkdir()
    (unigram / "tokenizer.json").write_text('{"model": {"type": "Unigram", "vocab": []}}')
    for arguments, message in ((["--tokenizer", tmp_path, file], "has no tokeniser"),
                               (["--tokenizer", folder, tmp_path / "nothing"], "No such file"),
                               (["--tokenizer", folder, tmp_path], "cannot read"),
                               (["--tokenizer", folder, file, "--max-length", 1], "2 special tokens"),
                               (["--tokenizer", unigram, file], "model.type Unigram is not supported"),
                               ([file], "--tokenizer is required")):
        result = encode(*arguments)
        assert (result.returncode, result.stdout) == (2, b""), result
        assert message in result.stderr.decode() and result.stderr.count(b"\n") == 1, result.stderr


def test_gpt2s_files_are_enough(tmp_path):
    tokenizer = gpt2()
    tokenizer.model.save(str(tmp_path))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["merges.txt", "vocab.json"]
    lines = [line for line in corpus() if "\f" not in line]
    result = encode("--tokenizer", tmp_path, "-", data="\n".join(lines).encode())
    assert ids(result) == [e.ids for e in tokenizer.encode_batch(lines)]


def test_berts_vocabulary_is_enough(folder, tmp_path):
    theirs = bert().from_file(str(folder / "tokenizer.json"))
    theirs.model.save(str(tmp_path))
    lines = [line for line in corpus() if "\f" not in line]
    result = encode("--tokenizer", tmp_path, "-", data="\n".join(lines).encode())
    assert ids(result) == [e.ids for e in theirs.encode_batch(lines)]
