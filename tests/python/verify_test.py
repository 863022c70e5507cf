"""The certificate of 'echelon verify': every cell holds, the files say what scripts rely on, and faults make it fail."""

import json
import os
import pty
import re
import subprocess

import pytest

FAULTS_AT_LEAST = 8
COLUMNS = 100


def test_every_quick_cell_holds_and_the_files_say_so(echelon):
    result = echelon("verify", "--quick", "--json", "cells.json", "--html", "cells.html")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Memory block" not in result.stderr
    certificate = json.loads((echelon.folder / "cells.json").read_text())
    assert set(certificate) >= {"echelon", "commit", "torch", "compiler", "machine", "cpu", "cores", "date", "command"}
    assert certificate["failed"] == 0 and certificate["broken_worlds"] == 0
    assert certificate["command"].startswith("echelon verify --quick")
    cells = certificate["cells"]
    assert {cell["world"] for cell in cells} == {2, 3, 4, 8}
    for cell in cells:
        assert set(cell) >= {"name", "world", "mesh", "max_abs_diff", "bytes_ok", "memory_ok", "bubble", "seconds"}
        narrow = "bf16" in cell["name"] or "fp16" in cell["name"]
        most = 0 if "same gradients" in cell["name"] else 0.001 if narrow else 1e-9
        assert cell["max_abs_diff"] <= cell["bound"] <= most, cell
        assert cell["bytes_ok"] and cell["memory_ok"] and cell["bubble_ok"], cell
        assert bool(cell["bubble"]) == (cell["mesh"][0] != "1"), cell
    names = "\n".join(cell["name"] for cell in cells)
    for part in ("ring", "rabenseifner", "accumulation", "weighted shares", "server sync, 1 colocated",
                 "server sync, 1 separate", "bounded with staleness 0", "data parallel, fp16",
                 "ZeRO 3, bf16, fp32 sums, 3 micro-batches", "ZeRO 2, fp16, masters given the same gradients",
                 "data parallel, recompute full", "ZeRO 3, recompute selective", "ZeRO 2, dropout",
                 "weighted shares, dropout", "gpipe", "1f1b", "interleaved", "zero-bubble", "sequence", "offload disk"):
        assert part in names
    page = (echelon.folder / "cells.html").read_text()
    assert f"All {len(cells)} cells hold" in page and "http" not in page
    assert result.stdout.count("\nok  ") == len(cells)
    assert all(len(line) <= COLUMNS and line == line.rstrip() for line in result.stdout.splitlines())


def test_every_cell_of_three_ranks_holds(echelon):
    result = echelon("verify", "--world", "3", "--json", "cells.json")
    assert result.returncode == 0, result.stdout + result.stderr
    certificate = json.loads((echelon.folder / "cells.json").read_text())
    assert certificate["failed"] == 0 and certificate["broken_worlds"] == 0
    names = "\n".join(cell["name"] for cell in certificate["cells"])
    assert "ZeRO 3, lamb" in names and "1x3x1" in names and "3x1x1" in names and "1x1x3" in names


def test_a_world_of_one_is_a_world(echelon):
    result = echelon("verify", "--world", "1", "--json", "cells.json")
    assert result.returncode == 0, result.stdout + result.stderr
    cells = json.loads((echelon.folder / "cells.json").read_text())["cells"]
    assert cells and all(cell["mesh"] == "1x1x1" for cell in cells)
    assert echelon("verify", "--world", "9").returncode == 2


def test_a_fault_that_is_caught_is_told_on_the_screen_and_in_the_files(echelon):
    result = echelon("verify", "--world", "2", "--inject", "repeated-sum", "--json", "cells.json", "--html", "cells.html")
    assert result.returncode == 1
    lines = result.stdout.splitlines()
    assert all(len(line) <= COLUMNS and line == line.rstrip() for line in lines), result.stdout
    certificate = json.loads((echelon.folder / "cells.json").read_text())
    assert certificate["fault"] == "repeated-sum" and certificate["fault_caught"] is True
    assert sum(line.startswith("FAILED") for line in lines) == certificate["failed"] == len(certificate["cells"])
    for cell in certificate["cells"]:
        differs = cell["max_abs_diff"] is None or cell["max_abs_diff"] > cell["bound"]
        assert cell["ok"] is False and cell["notes"][0].startswith("max diff: ") == differs
        assert cell["note"] == "; ".join(cell["notes"]) and f"        {cell['notes'][0]}" in lines
    page = (echelon.folder / "cells.html").read_text()
    assert "The fault repeated-sum was injected, and caught" in page
    rows = re.findall(r"<tr class=bad>.*?<td class=n>", page)
    assert len(rows) == len(certificate["cells"])


def test_faults_are_listed_a_line_each_and_on_a_terminal_below_a_heading(echelon):
    piped = echelon("verify", "--list-injections").stdout
    assert all(len(line) <= COLUMNS for line in piped.splitlines())
    ours, theirs = pty.openpty()
    subprocess.run([echelon.program, "verify", "--list-injections"], stdout=theirs, check=True, timeout=60)
    os.close(theirs)
    shown = b""
    while part := read_some(ours):
        shown += part
    heading, *lines = shown.decode().splitlines()
    assert heading.split() == "fault caught by what goes wrong".split()
    assert lines == piped.splitlines()


def read_some(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""


def test_every_fault_is_caught(echelon):
    faults = [line.split()[0] for line in echelon("verify", "--list-injections").stdout.splitlines()]
    assert len(faults) >= FAULTS_AT_LEAST
    for fault in faults:
        result = echelon("verify", "--world", "2", "--inject", fault)
        if "shows in no cell" in result.stderr:
            result = echelon("verify", "--world", "4", "--inject", fault)
        caught = re.search(rf"the fault {fault} was caught by (\d+) of (\d+) cells", result.stdout)
        assert result.returncode == 1 and caught, result.stdout + result.stderr
        assert caught[1] == caught[2], result.stdout


@pytest.mark.parametrize("arguments, said", [
    (("--inject", "lost-gradients"), "did you mean lost-gradient?"),
    (("--inject", "missing-tied-sum", "--world", "1"), "no cell of these worlds"),
])
def test_a_fault_that_cannot_be_put_in_is_refused(echelon, arguments, said):
    result = echelon("verify", *arguments)
    assert result.returncode == 2 and said in result.stderr
