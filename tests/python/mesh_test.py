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
    for words in ("predicted from what its slots cost", "as it ran", "stage 1 (rank 1) |", "stage 1 has layer",
                  "idle (%) is the share of the step", "(p-1)/(m+p-1) = 1/5 = 20.0 %",
                  "bubble is what the step takes beyond", "(p-1)/m = 1/4 = 25.0 %"):
        assert words in result.stdout, words
    picture = (echelon.folder / "runs/job/pipeline.svg").read_text()
    assert "<svg" in picture and ">stage 1 (rank 1)<" in picture and "(p-1)/m = 1/4" in picture


def test_rows_of_a_drawing_are_stages_with_the_ranks_that_have_them(echelon):
    result = echelon("train", "--nproc", 4, "--name", "job", "--trace", "pipeline", *settings(parallel_pipeline=2))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "stage 1 (rank 2) |" in result.stdout and "rank 1 |" not in result.stdout
    assert "of rank 0's pipeline, one of 2" in result.stdout


def test_the_report_at_the_start_keeps_to_a_hundred_columns_without_blanks_at_ends(echelon):
    result = echelon("train", "--nproc", 8, "--name", "job",
                     *settings(parallel_pipeline=4, parallel_zero=2, train_micro_batches=1, parallel_data=2))
    assert result.returncode == 0, result.stdout + result.stderr
    opening = result.stdout[:result.stdout.index("\nstep ")].splitlines()
    assert [line for line in opening if len(line) > 100 or line != line.rstrip()] == []
    assert any(line.startswith("pipeline    1f1b, 1 micro-batch: a rank idles (p-1)/(m+p-1) = 3/4") for line in opening)
    warnings = [line for line in result.stderr.splitlines() if "train.micro_batches" in line]
    assert len(warnings) == 1 and "with train.micro_batches=4 it would be" in warnings[0], result.stderr


def test_a_state_goes_on_in_another_mesh(echelon):
    result = echelon("train", "--nproc", 2, "--name", "job", *settings(parallel_pipeline=2))
    assert result.returncode == 0, result.stderr
    more = ["--set", "train.steps=8", "--set", "parallel.pipeline=1", "--set", "parallel.tensor=2"]
    result = echelon("train", "--nproc", 2, "--resume", "runs/job", *more)
    assert result.returncode == 0, result.stdout + result.stderr
    assert echelon("train", "--name", "one", *settings(train_steps=8)).returncode == 0
    pairs = zip(losses(echelon, "one"), losses(echelon, "job"), strict=True)
    assert max(abs(a - b) for a, b in pairs) < 1e-10


def await_steps(echelon, job):
    metrics = echelon.folder / "runs/job/metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.read_text().count("\n") > 5):
        assert job.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_rank_that_dies_in_mid_schedule_ends_all(echelon, victim):
    job = echelon.start("train", "--nproc", 3, "--name", "job",
                        *settings(parallel_pipeline=3, train_steps=100000, model_width=64))
    await_steps(echelon, job)
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
    assert result.stderr.count("\n") == 1, "said more than once"
    assert not (echelon.folder / "runs").exists()


def test_what_all_ranks_refuse_is_said_once_under_a_launcher(echelon):
    result = echelon("launch", "--nproc", 3, "--", echelon.program, "train",
                     *settings(parallel_pipeline=3, parallel_zero=1))
    assert result.returncode == 2, result.stderr
    assert result.stderr.count("there is one") == 1 and result.stderr.count("\n") == 2, result.stderr


def test_a_run_with_zero_goes_on_in_a_pipeline_as_the_refusal_says(echelon):
    made = settings(parallel_pipeline=2, parallel_zero=2, zero_scatter="step", pipeline_schedule="gpipe")
    result = echelon("train", "--nproc", 4, "--name", "job", *made)
    assert result.returncode == 0, result.stderr
    def go_on(ranks, *more):
        return echelon("train", "--nproc", ranks, "--resume", "runs/job", "--set", "train.steps=8", *more)
    refused = go_on(2)
    assert refused.returncode == 2 and "or set parallel.zero=0 and zero.scatter=auto" in refused.stderr, refused.stderr
    advice = ["--set", "parallel.zero=0", "--set", "zero.scatter=auto"]
    alone = go_on(1, *advice, "--set", "parallel.pipeline=1")
    assert alone.returncode == 2 and "or set pipeline.schedule=1f1b" in alone.stderr, alone.stderr
    result = go_on(2, *advice)
    assert result.returncode == 0, result.stderr


def test_a_rank_that_dies_is_named_last_and_the_missing_state_told(echelon):
    job = echelon.start("train", "--nproc", 3, "--name", "job",
                        *settings(parallel_pipeline=3, train_steps=100000, model_width=64))
    await_steps(echelon, job)
    os.kill(rank_process(job, 2), signal.SIGKILL)
    _, errors = job.communicate(timeout=30)
    lines = errors.splitlines()
    assert re.fullmatch(r"echelon: error: rank 2 \(pid \d+\) was killed by signal 9 \(Killed\)", lines[-1]), errors
    assert "no state was saved" in errors and "train.save_every" in errors
    log = (echelon.folder / "runs/job/rank0.log").read_text()
    assert re.search(r"rank 2 on \S+ \(pid \d+\) was lost", log), log


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
    # A rank that says it a second after the others, on a busy machine, has a line of its own.
    said = [line.split("] ")[-1] for line in result.stderr.splitlines() if words in line]
    assert len(set(said)) == 1 and (launcher or len(said) == 1), result.stderr
