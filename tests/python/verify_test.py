"""The certificate of 'echelon verify': every cell holds, and the file says what scripts rely on."""

import json


def test_every_cell_holds(echelon):
    result = echelon("verify", "--world", "2", "3", "--json", "cells.json")
    assert result.returncode == 0, result.stdout + result.stderr
    certificate = json.loads((echelon.folder / "cells.json").read_text())
    assert certificate["failed"] == 0
    cells = certificate["cells"]
    assert {cell["world"] for cell in cells} == {2, 3}
    for cell in cells:
        assert set(cell) >= {"name", "world", "max_abs_diff", "bytes_ok", "memory_ok"}
        narrow = "bf16" in cell["name"] or "fp16" in cell["name"]
        most = 0 if "same gradients" in cell["name"] else 0.001 if narrow else 1e-9
        assert cell["max_abs_diff"] <= cell["bound"] <= most and cell["bytes_ok"] and cell["memory_ok"], cell
    names = "\n".join(cell["name"] for cell in cells)
    for part in ("ring", "rabenseifner", "accumulation", "weighted shares", "server sync, 1 colocated",
                 "server sync, 1 separate", "bounded with staleness 0", "data parallel, fp16",
                 "ZeRO 3, bf16, fp32 sums, 3 micro-batches", "ZeRO 2, fp16, masters given the same gradients",
                 "data parallel, recompute full", "ZeRO 3, recompute selective", "ZeRO 2, dropout",
                 "weighted shares, dropout"):
        assert part in names


def test_a_world_of_one_is_refused(echelon):
    assert echelon("verify", "--world", "1").returncode == 2
