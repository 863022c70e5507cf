"""Readers of TSV, CSV and JSONL against Python's own csv and json modules."""

import csv
import io
import json
import random
import subprocess

import pytest

from conftest import BUILD

PIECES = ["a", "word", " ", ",", '"', '""', "'", "\\", "\\n", "é", "漢字", "😀", "\u2028", "\x00", "0", "-1.5", "#", "{", "[1]",
          "\x7f", "\ufeff"]


def read(path, header=True, columns=()):
    done = subprocess.run([BUILD / "tests" / "records_oracle", path, "1" if header else "0", *columns],
                          capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.split(b"\n") if line]


def text(rng, pieces=PIECES, most=8):
    return "".join(rng.choice(pieces) for _ in range(rng.randrange(most)))


def table(rng, pieces=PIECES):
    columns = rng.randrange(1, 5)
    rows = [[text(rng, pieces) for _ in range(columns)] for _ in range(rng.randrange(2, 40))]
    for row in rows:
        row[0] = row[0].lstrip("\ufeff") or "x"  # a line that is empty is refused
    return rows


@pytest.mark.parametrize("seed", range(40))
def test_csv_is_what_pythons_module_writes(tmp_path, seed):
    rng = random.Random(seed)
    rows = table(rng, PIECES + ["\n", "\r\n", "\t"])
    file = tmp_path / "a.csv"
    with open(file, "w", newline="", encoding=rng.choice(["utf-8", "utf-8-sig"])) as out:
        csv.writer(out, lineterminator=rng.choice(["\n", "\r\n"]),
                   quoting=rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])).writerows(rows)
    assert read(file, header=False) == rows
    with open(file, newline="", encoding="utf-8-sig") as again:
        assert list(csv.reader(again, strict=True)) == rows, "Python reads its own"
    if len(set(rows[0])) == len(rows[0]):
        assert read(file) == rows[1:]


@pytest.mark.parametrize("seed", range(40))
def test_tsv_is_split_at_tabs_and_nowhere_else(tmp_path, seed):
    rng = random.Random(1000 + seed)
    rows = table(rng)
    end = rng.choice(["\n", "\r\n"])
    content = end.join("\t".join(row) for row in rows) + rng.choice(["", end])
    file = tmp_path / "a.tsv"
    file.write_bytes(content.encode())
    # The way GLUE's files are read everywhere.
    expected = list(csv.reader(io.StringIO(content, newline=""), delimiter="\t", quoting=csv.QUOTE_NONE))
    assert read(file, header=False) == expected == rows


@pytest.mark.parametrize("seed", range(40))
def test_jsonl_is_what_pythons_module_writes(tmp_path, seed):
    rng = random.Random(2000 + seed)

    def value(depth=0):
        kind = rng.randrange(8 if depth < 3 else 6)
        if kind < 3:
            return text(rng, PIECES + ["\n", "\t", "\x1f", "\r"])
        return [lambda: rng.randrange(-10**12, 10**12), lambda: rng.uniform(-1, 1) * 10 ** rng.randrange(-20, 20),
                lambda: rng.choice([True, False]), lambda: [value(depth + 1) for _ in range(rng.randrange(3))],
                lambda: {text(rng): value(depth + 1) for _ in range(rng.randrange(3))}][kind - 3]()

    rows = []
    for _ in range(rng.randrange(1, 30)):
        row = [("text", text(rng, PIECES + ["\n"])), ("label", rng.choice([1, "one", True, 2.5]))]
        row += [(text(rng) + str(i), value()) for i in range(rng.randrange(4))]
        rng.shuffle(row)
        rows.append(dict(row))
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join(json.dumps(row, ensure_ascii=rng.choice([True, False])) for row in rows),
                    encoding="utf-8", newline="")
    for row, (string, label) in zip(rows, read(file, columns=["text", "label"]), strict=True):
        assert string == row["text"]
        assert label == row["label"] if isinstance(row["label"], str) else json.loads(label) == row["label"]


def test_thousands_of_records_are_all_there(tmp_path):
    rng = random.Random(7)
    rows = [[text(rng, PIECES + ["\n"]) or "x", str(i)] for i in range(20_000)]
    with open(tmp_path / "a.csv", "w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([["text", "number"], *rows])
    assert read(tmp_path / "a.csv") == rows
    assert [number for (number,) in read(tmp_path / "a.csv", columns=["number"])] == [str(i) for i in range(20_000)]
