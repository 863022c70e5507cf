"""Ranks that reduce among themselves, as processes: what a trace shows, and shares that follow speed."""

import json
import os
import re
import signal
import time

from conftest import rank_process

TINY = dict(model_layers=2, model_width=32, model_heads=2, train_validate_every=0, data_source="random", train_threads=1)


# Gradients that say something and hardly turn, and a rank that all others wait for: age would pay.
UNEVEN = dict(data_source="text.txt", model_context=32, train_batch=2, optim_rate=1e-5, optim_warmup=2, sync_every=2,
              chaos_slow='["1:30.0"]')


def settings(**options):
    words = []
    for name, value in (TINY | options).items():
        words += ["--set", f"{name.replace('_', '.', 1)}={value}"]
    return words


def test_a_trace_shows_every_bucket_of_every_step(echelon):
    result = echelon("train", "--nproc", "3", "--name", "job", "--trace", "sync",
                     *settings(train_steps=4, train_batch=6, parallel_bucket_mib=0.01, comm_algorithm="ring"))
    assert result.returncode == 0, result.stdout + result.stderr
    buckets = len(json.loads((echelon.folder / "runs/job/plan.json").read_text())["buckets"])
    assert buckets > 2
    lines = re.findall(r"bucket \d+  \S+ \S+ by ring: (\S+ \S+) to rank 1 +[\d.]+ … +[\d.]+ ms", result.stdout)
    assert len(lines) == 4 * buckets, result.stdout
    events = json.loads((echelon.folder / "runs/job/trace.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in spans} == {0, 1, 2}
    assert sum(event["name"].startswith("reduce") for event in spans) == 3 * 4 * buckets
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in spans)
    assert {event["args"]["name"] for event in events if event["ph"] == "M"} >= {"rank 0", "rank 2", "computing", "reducing"}


def test_a_trace_needs_ranks(echelon):
    result = echelon("train", "--trace", "sync", *settings(train_steps=2, train_batch=4))
    assert result.returncode == 2 and "--nproc" in result.stderr


def test_a_slow_rank_gets_a_smaller_share_and_the_losses_stay(echelon):
    common = dict(train_steps=40, train_batch=16, train_precision="fp64", parallel_shares_every=5)
    for name, options in (("even", {}), ("speed", {"parallel_shares": "speed", "chaos_slow": '["1:8.0"]'})):
        result = echelon("train", "--nproc", "2", "--name", name, *settings(**common, **options))
        assert result.returncode == 0, result.stdout + result.stderr
    log = (echelon.folder / "runs/speed/rank0.log").read_text()
    shares = re.findall(r"shares of the batch \[\d+, \d+\] become \[(\d+), (\d+)\]", log)
    assert shares and int(shares[-1][0]) > int(shares[-1][1]), log

    def losses(name):
        return [json.loads(line)["loss"] for line in (echelon.folder / f"runs/{name}/metrics.jsonl").read_text().splitlines()]

    assert max(abs(a - b) for a, b in zip(losses("even"), losses("speed"), strict=True)) < 1e-10


def test_a_batch_need_not_divide_by_the_ranks(echelon):
    for ranks in (1, 3):
        result = echelon("train", "--nproc", ranks, "--name", f"of-{ranks}",
                         *settings(train_steps=6, train_batch=8, train_precision="fp64"))
        assert result.returncode == 0, result.stdout + result.stderr

    def losses(name):
        return [json.loads(line)["loss"] for line in (echelon.folder / f"runs/{name}/metrics.jsonl").read_text().splitlines()]

    assert max(abs(a - b) for a, b in zip(losses("of-1"), losses("of-3"), strict=True)) < 1e-12


def test_a_slowness_that_means_nothing_is_refused(echelon):
    for word in ("1", "1:0.5", "x:2", "1:2x"):
        result = echelon("train", "--nproc", "2", *settings(train_steps=2, train_batch=4, chaos_slow=f'["{word}"]'))
        assert result.returncode == 2 and word in result.stderr, result.stderr


def test_gradients_get_old_only_where_that_is_allowed_and_pays(echelon):
    common = dict(train_steps=80, train_check_every=2, **UNEVEN)
    for name, staleness in (("strict", 0), ("lenient", 3)):
        result = echelon("train", "--nproc", "2", "--name", name, *settings(**common, sync_allow_staleness=staleness))
        assert result.returncode == 0, result.stdout + result.stderr

    def steps(name):
        return [json.loads(line) for line in (echelon.folder / f"runs/{name}/metrics.jsonl").read_text().splitlines()]

    assert all("ages" not in step for step in steps("strict"))
    ages = [age for step in steps("lenient") for age in step.get("ages", [])]
    assert ages and max(ages) <= 3
    log = (echelon.folder / "runs/lenient/rank0.log").read_text()
    assert re.search(r"gradients may be 3 updates old until step \d+: a step takes [\d.]+ ms and is predicted", log), log
    assert re.search(r"\d+ steps with gradients up to 3 updates old took [\d.]+ ms each where", log), log
    assert [step["step"] for step in steps("lenient")] == list(range(1, 81))


def test_staleness_needs_ranks_that_reduce_among_themselves(echelon):
    for ranks, server in ((1, 0), (2, 1)):
        result = echelon("train", "--nproc", ranks, *settings(train_steps=2, train_batch=4, sync_allow_staleness=1,
                                                              server_count=server))
        assert result.returncode == 2 and "sync.allow_staleness" in result.stderr, result.stderr


def test_a_rank_that_dies_while_gradients_may_be_old_is_named(echelon):
    job = echelon.start("train", "--nproc", "2", "--name", "job", *settings(
        train_steps=100000, sync_allow_staleness=3, comm_timeout=20, **UNEVEN))
    log = echelon.folder / "runs/job/rank0.log"
    deadline = time.time() + 60
    while not (log.exists() and log.read_text().rstrip().split("\n")[-1].count("may be 3 updates old")):
        assert time.time() < deadline and job.poll() is None, log.read_text() if log.exists() else "no log"
        time.sleep(0.02)
    os.kill(rank_process(job, 1), signal.SIGKILL)
    _, errors = job.communicate(timeout=30)
    assert job.returncode not in (0, None)
    assert re.search(r"rank 1 \(pid \d+\) was killed by signal 9", errors), errors
    # The survivor notices at the server of rank 1, at the worker of rank 1, or, if the phase has just ended, among the ranks.
    assert re.search(r"parameter server 1 \(rank 1\)|rank 1 \(pid \d+\) is gone|rank 1 on \S+ \(pid \d+\) was lost",
                     errors), errors
