"""Jobs on a mesh of ranks, as processes: losses of one process, what a trace draws, ranks that die, and what is refused."""

import json
import os
import re
import signal
import time

import pytest
from conftest import rank_process

TINY = dict(model_layers=4, model_width=32, model_heads=4, model_context=16, train_validate_every=0, data_source="random",
            train_threads=1, train_steps=6, train_batch=8, train_micro_batches=4, train_precision="fp64")


def settings(**options):
    words = []
    for name, value in (TINY | options).items():
        words += ["--set", f"{name.replace('_', '.', 1)}={value}"]
    return words


def losses(echelon, name):
    return [json.loads(line)["loss"] for line in (echelon.folder / f"runs/{name}/metrics.jsonl").read_text().splitlines()]


def test_every_dimension_has_the_losses_of_one_process(echelon):
    assert echelon("train", "--name", "one", *settings()).returncode == 0
    for name, ranks, options in (("pipeline", 2, dict(parallel_pipeline=2)),
                                 ("tensor", 2, dict(parallel_tensor=2)),
                                 ("all", 8, dict(parallel_pipeline=2, parallel_tensor=2, parallel_zero=3))):
        result = echelon("train", "--nproc", ranks, "--name", name, *settings(**options))
        assert result.returncode == 0, result.stdout + result.stderr
        pairs = zip(losses(echelon, "one"), losses(echelon, name), strict=True)
        assert max(abs(a - b) for a, b in pairs) < 1e-10, name
    mesh = json.loads((echelon.folder / "runs/all/plan.json").read_text())["mesh"]
    assert mesh == {"pipeline": 2, "data": 2, "tensor": 2}


def test_a_pipeline_is_drawn_as_predicted_and_as_it_ran(echelon):
    result = echelon("train", "--nproc", 2, "--name", "job", "--trace", "pipeline", *settings(parallel_pipeline=2))
    assert result.returncode == 0, result.stdout + result.stderr
    for words in ("predicted from what the slots cost", "as it ran", "rank 1 |", "stage 1 has layer"):
        assert words in result.stdout
    assert "<svg" in (echelon.folder / "runs/job/pipeline.svg").read_text()


def test_a_state_goes_on_in_another_mesh(echelon):
    result = echelon("train", "--nproc", 2, "--name", "job", *settings(parallel_pipeline=2))
    assert result.returncode == 0, result.stderr
    more = ["--set", "train.steps=8", "--set", "parallel.pipeline=1", "--set", "parallel.tensor=2"]
    result = echelon("train", "--nproc", 2, "--resume", "runs/job", *more)
    assert result.returncode == 0, result.stdout + result.stderr
    assert echelon("train", "--name", "one", *settings(train_steps=8)).returncode == 0
    pairs = zip(losses(echelon, "one"), losses(echelon, "job"), strict=True)
    assert max(abs(a - b) for a, b in pairs) < 1e-10


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_rank_that_dies_in_mid_schedule_ends_all(echelon, victim):
    job = echelon.start("train", "--nproc", 3, "--name", "job",
                        *settings(parallel_pipeline=3, train_steps=100000, model_width=64))
    metrics = echelon.folder / "runs/job/metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.read_text().count("\n") > 5):
        assert job.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(rank_process(job, victim), signal.SIGKILL)
    _, errors = job.communicate(timeout=30)
    assert job.returncode != 0
    assert re.search(rf"rank {victim} \(pid \d+\) was killed by signal 9", errors), errors


@pytest.mark.parametrize("ranks, options, words", [
    (3, dict(parallel_pipeline=2), "start 2 or 4"),
    (2, dict(parallel_tensor=2, model_heads=1), "heads"),
    (2, dict(parallel_pipeline=2, pipeline_schedule="interleaved", pipeline_chunks=2, train_micro_batches=1), "micro-batches"),
    (2, dict(parallel_pipeline=2, pipeline_schedule="interleaved", pipeline_chunks=4), "a stage needs one"),
    (2, dict(parallel_pipeline=2, pipeline_stages="1,2"), "pipeline.stages"),
    (2, dict(parallel_pipeline=2, server_count=1), "server.count"),
    (2, dict(pipeline_schedule="gpipe"), "parallel.pipeline"),
    (2, dict(pipeline_balance="memory"), "parallel.pipeline"),
    (2, dict(parallel_pipeline=2, pipeline_schedule="interleaved"), "pipeline.chunks"),
    (2, dict(zero_scatter="step"), "parallel.zero"),
    (2, dict(parallel_pipeline=2, parallel_zero=1), "there is one"),
])
def test_what_does_not_fit_is_refused_in_a_sentence(echelon, ranks, options, words):
    result = echelon("train", "--nproc", ranks, *settings(**options))
    assert result.returncode == 2 and words in result.stderr, result.stderr
    assert not (echelon.folder / "runs").exists()


def test_the_mesh_is_drawn(echelon):
    result = echelon("topo", "--nproc", 8, "--mesh", "2x2x2")
    assert result.returncode == 0 and "stage 1    [ 4 5 ]  [ 6 7 ]" in result.stdout


def test_the_mesh_is_written_down(echelon):
    assert echelon("topo", "--nproc", 4, "--mesh", "2x0x1", "--json", "mesh.json").returncode == 0
    mesh = json.loads((echelon.folder / "mesh.json").read_text())
    assert mesh["shape"] == {"pipeline": 2, "data": 2, "tensor": 1}
    places = [(one["rank"], one["pipeline"], one["data"], one["tensor"]) for one in mesh["ranks"]]
    assert places == [(0, 0, 0, 0), (1, 0, 1, 0), (2, 1, 0, 0), (3, 1, 1, 0)]
    assert len({one["host"] for one in mesh["ranks"]}) == 1 and all(one["machine"] for one in mesh["ranks"])


@pytest.mark.parametrize("launcher", [(), ("launch", "--nproc", 4, "--")])
@pytest.mark.parametrize("mesh, words", [("2x2", "give pipeline x data x tensor"), ("3x0x1", "start 3 or 6")])
def test_a_mesh_that_cannot_be_is_refused_once(echelon, launcher, mesh, words):
    command = [*launcher, echelon.program] if launcher else []
    result = echelon(*command, "topo", "--nproc", 4, "--mesh", mesh)
    assert result.returncode == 2
    of_ranks = [line for line in result.stderr.splitlines() if words in line and line.startswith("[")]
    assert len(of_ranks) == 1 if launcher else result.stderr.count(words) == 1, result.stderr
