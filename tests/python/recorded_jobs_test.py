"""Jobs of every kind give the numbers and the bytes that were recorded (recorded_jobs.py)."""

import json
import math

import pytest

import recorded_jobs

RECORDED = json.loads(recorded_jobs.GOLDEN_FILE.read_text())
ROUNDING = 1e-11  # of fp64 sums in the order of another machine's kernels, over a few steps


def agree(recorded, found):
    if isinstance(recorded, dict):
        return list(recorded) == list(found) and all(agree(recorded[key], found[key]) for key in recorded)
    if isinstance(recorded, list):
        return len(recorded) == len(found) and all(map(agree, recorded, found))
    if isinstance(recorded, float) and isinstance(found, float):
        return math.isclose(recorded, found, rel_tol=ROUNDING)
    return recorded == found


@pytest.mark.parametrize("name", recorded_jobs.GOLDEN)
def test_a_job_gives_what_was_recorded(name, tmp_path):
    files = recorded_jobs.run(recorded_jobs.JOBS[name], tmp_path)
    metrics = [json.loads(line) for line in files["metrics.jsonl"].splitlines()]
    assert len(metrics) == len(RECORDED[name]["metrics"])
    for recorded, found in zip(RECORDED[name]["metrics"], metrics):
        assert agree(recorded, found), f"recorded {recorded}\nfound    {found}"
    assert recorded_jobs.sent(files["ledger.json"]) == RECORDED[name]["sent"]


def test_a_number_or_a_byte_that_changed_is_seen(tmp_path):
    line = RECORDED["one-fp64"]["metrics"][0]
    assert agree(line, dict(line))
    assert not agree(line, line | {"loss": line["loss"] * (1 + 1e-9)})
    assert not agree(line, line | {"tokens": line["tokens"] + 1})
    assert not agree(line, line | {"more": 1})
    for name, loss in (("a", 1), ("b", 2)):
        (tmp_path / name / "job").mkdir(parents=True)
        (tmp_path / name / "job/metrics.jsonl").write_text(f'{{"loss":{loss}}}\n')
    (tmp_path / "b/job/ledger.json").write_text("{}")
    assert recorded_jobs.differences(tmp_path / "a", tmp_path / "b") == ["job/ledger.json", "job/metrics.jsonl"]
