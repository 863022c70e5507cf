"""What a run is trained on: the same for all its ranks, for those who join it and when it goes on, and whole until it
ends; and one job at a time in a run's folder."""

import json
import os
import re
import signal
import subprocess
import time

import pytest
from conftest import ENVIRONMENT, metrics

TOKEN = "a token for the tests of data"


def contents(run):
    return {path.name: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def refused(result):
    """The one sentence of a command that must be refused as the user's mistake."""
    assert result.returncode == 2, result.stdout + result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


def wait_for(condition, process, what):
    deadline = time.monotonic() + 90
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def steps_done(run):
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


# ---- Between ranks


def train_on_own_files(echelon, *arguments, **settings):
    """Two ranks, of which each reads data.txt in a folder of its own."""
    settings = dict(data_source="data.txt", train_steps=3) | settings
    command = " ".join(echelon.train_arguments(*arguments, **settings))
    return echelon("launch", "--nproc", "2", "--", "sh", "-c", f"cd rank$RANK; exec {echelon.program} {command}")


@pytest.mark.parametrize("change, says", [
    (lambda text: text[:6000], r"rank 1 has 6000 bytes to train on and rank 0 has \d+"),
    (lambda text: text.upper(), r"rank 1 and rank 0 have \d+ bytes each, and not the same ones"),
], ids=["cut", "changed"])
def test_ranks_with_different_data_are_refused(echelon, text, change, says):
    for rank, data in enumerate((text, change(text))):
        folder = echelon.folder / f"rank{rank}"
        folder.mkdir()
        (folder / "data.txt").write_text(data)
    result = train_on_own_files(echelon)
    assert result.returncode == 2, result.stdout + result.stderr
    assert re.search(says, result.stderr) and "--allow-other-data" in result.stderr, result.stderr
    assert not list(echelon.folder.glob("rank*/runs"))
    allowed = train_on_own_files(echelon, "--allow-other-data")
    assert allowed.returncode == 0, allowed.stdout + allowed.stderr
    assert re.search(says, allowed.stderr), "it was not even warned of"


def test_memory_is_looked_at_before_data_are_read(echelon, text):
    for rank, data in enumerate((text, text.upper())):
        folder = echelon.folder / f"rank{rank}"
        folder.mkdir()
        (folder / "data.txt").write_text(data)
    result = train_on_own_files(echelon, train_memory_mib=0.01)
    assert result.returncode == 2 and "train.memory_mib" in result.stderr, result.stdout + result.stderr
    assert "different data" not in result.stderr, result.stderr


def test_ranks_with_copies_of_the_same_data_train(echelon, text):
    for rank in range(2):
        folder = echelon.folder / f"rank{rank}"
        folder.mkdir()
        (folder / "data.txt").write_text(text)
    result = train_on_own_files(echelon)
    assert result.returncode == 0 and result.stderr == "", result.stdout + result.stderr


# ---- Between a run and what it goes on with


@pytest.mark.parametrize("where", ["replaced", "elsewhere"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_does_not_go_on_with_other_data(echelon, text, where, ranks):
    run = echelon.train_well("a", "--nproc", ranks, train_steps=4)
    kept = contents(run)
    other = echelon.folder / ("text.txt" if where == "replaced" else "other.txt")
    other.write_text(text.upper())
    more = ["train", "--resume", "runs/a", "--nproc", ranks, "--set", "train.steps=6"]
    if where == "elsewhere":
        more += ["--data", "other.txt"]
    result = echelon(*more)
    assert result.returncode == 2, result.stdout + result.stderr
    assert "runs/a was trained on other data" in result.stderr and "not the same ones" in result.stderr, result.stderr
    assert contents(run) == kept, "something was written"

    allowed = echelon(*more, "--allow-other-data")
    assert allowed.returncode == 0 and "other data" in allowed.stderr, allowed.stdout + allowed.stderr
    assert steps_done(run) == 6
    # From then on these are its data.
    onwards = echelon("train", "--resume", "runs/a", "--set", "train.steps=7")
    assert onwards.returncode == 0 and onwards.stderr == "", onwards.stderr


def test_a_run_goes_on_with_a_copy_of_its_data(echelon, text):
    whole = echelon.train_well("whole", train_steps=6)
    run = echelon.train_well("a", train_steps=4)
    (echelon.folder / "text.txt").rename(echelon.folder / "moved.txt")
    result = echelon("train", "--resume", "runs/a", "--data", "moved.txt", "--set", "train.steps=6")
    assert result.returncode == 0, result.stderr
    assert metrics(run) == metrics(whole)


def test_another_split_of_the_text_is_other_data(echelon):
    echelon.train_well("a", train_steps=4, train_validate_every=2, data_validation=0.1)
    for change in ("data.validation=0.2", "train.validate_every=0"):
        sentence = refused(echelon("train", "--resume", "runs/a", "--set", "train.steps=6", "--set", change))
        assert "bytes to train on" in sentence, sentence


def test_plan_and_state_say_what_the_data_were(echelon, text):
    run = echelon.train_well("a", train_validate_every=4)
    data = json.loads((run / "plan.json").read_text())["data"]
    assert data["tokeniser"] == "bytes" and data["files"] == 1
    assert data["training_bytes"] + data["validation_bytes"] == len(text)
    assert len(data["digest"]) == 32 and len(data["sample"]) == 32
    state = (run / "state.safetensors").read_bytes()
    header = json.loads(state[8:8 + int.from_bytes(state[:8], "little")])
    assert data.pop("source") == "text.txt"
    assert json.loads(header["__metadata__"]["data"]) == data, "all but where it was"
    other = echelon.train_well("b", data_source="random")
    assert json.loads((other / "plan.json").read_text())["data"]["tokeniser"] == "random"


# ---- Between a job and a worker that joins it


def test_a_worker_with_other_data_may_not_join(echelon, text):
    (echelon.folder / "other.txt").write_text(text.upper())
    settings = dict(server_count=1, server_mode="bounded", train_steps=100000, train_batch=8)
    environment = ENVIRONMENT | {"ECHELON_TOKEN": TOKEN}

    def start(*arguments, **more):
        command = [str(echelon.program), *echelon.train_arguments(*arguments, **(settings | more))]
        return subprocess.Popen(command, cwd=echelon.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env=environment)

    job = start("--nproc", 2, "--name", "job")
    try:
        line = ""
        while "--join" not in line:
            line = job.stdout.readline()
            assert line, job.communicate()
        address = re.search(r"--join (\S+)", line)[1]
        guest = start("--join", address, data_source="other.txt")
        out, err = guest.communicate(timeout=90)
        assert guest.returncode == 2, out + err
        assert "the worker has other data than the job" in err and "not the same ones" in err, err
        for arguments, more in (((), {}), (("--allow-other-data",), dict(data_source="other.txt"))):
            guest = start("--join", address, *arguments, **more)
            line = ""
            while "joined" not in line:
                line = guest.stdout.readline()
                assert line, guest.communicate()
            guest.send_signal(signal.SIGINT)
            assert guest.wait(timeout=90) == 0
    finally:
        job.send_signal(signal.SIGINT)
        out, err = job.communicate(timeout=90)
    assert job.returncode == 130, out + err
    assert "a worker that joins has other data" in err, err


# ---- Tokens that are not bytes


def test_weights_of_another_tokeniser_are_refused(echelon):
    run = echelon.train_well("a", model_vocab=300, train_steps=1)
    folder = run / "weights"
    config = json.loads((folder / "config.json").read_text())
    assert config["echelon_tokeniser"] == "bytes"
    again = dict(model_init=folder, model_layers=None, model_width=None, model_heads=None, model_context=None, train_steps=1)
    echelon.train_well("b", **again)
    assert echelon("generate", folder, "--tokens", 4).returncode == 0

    def refuses(**data):
        sentences = [refused(echelon("generate", folder, "--tokens", 4))]
        if data.get("train", True):
            sentences.append(refused(echelon.train("--name", "c", **again)))
            assert not (echelon.folder / "runs/c").exists()
        for sentence in sentences:
            assert "trained on tokens that are not bytes" in sentence and "data.tokenizer" in sentence, sentence
        return sentences[0]

    del config["echelon_tokeniser"]
    (folder / "config.json").write_text(json.dumps(config))
    assert "vocab_size = 300" in refuses()
    echelon.train_well("random", **again, data_source="random")  # any tokens will do
    config["echelon_tokeniser"] = "bpe"
    (folder / "config.json").write_text(json.dumps(config))
    assert "bpe" in refuses()

    plain = echelon.train_well("plain", train_steps=1) / "weights"
    config = json.loads((plain / "config.json").read_text())
    del config["echelon_tokeniser"]
    (plain / "config.json").write_text(json.dumps(config))
    assert echelon("generate", plain, "--tokens", 4).returncode == 0, "256 tokens are taken for bytes"
    (plain / "tokenizer.json").write_text("{}")
    assert "tokenizer.json" in refused(echelon("generate", plain, "--tokens", 4))


# ---- A file that changes under a job


@pytest.mark.parametrize("ranks", [1, 2])
def test_data_that_are_cut_under_a_job_end_it_with_a_sentence(echelon, text, ranks):
    (echelon.folder / "text.txt").write_text(text * 50)
    job = echelon.start(*echelon.train_arguments("--name", "a", "--nproc", ranks, train_steps=1000000))
    wait_for(lambda: steps_done(echelon.folder / "runs/a") > 20, job, "no steps came")
    os.truncate(echelon.folder / "text.txt", 1000)
    out, err = job.communicate(timeout=90)
    assert job.returncode == 1, f"{job.returncode}: {out}{err}"
    assert re.search(r"text.txt (has become shorter|was changed) while", err), err


def test_data_that_grow_or_are_touched_do_not_disturb_a_job(echelon):
    whole = echelon.train_well("whole", train_steps=300)
    job = echelon.start(*echelon.train_arguments("--name", "a", train_steps=300))
    run = echelon.folder / "runs/a"
    wait_for(lambda: steps_done(run) > 20, job, "no steps came")
    os.utime(echelon.folder / "text.txt")
    with (echelon.folder / "text.txt").open("a") as file:
        file.write("more")
    out, err = job.communicate(timeout=90)
    assert job.returncode == 0, out + err
    assert metrics(run) == metrics(whole)


# ---- One job at a time


def test_a_run_that_a_job_is_in_is_refused_to_another(echelon):
    settings = dict(train_steps=1000000, train_save_every=5)
    first = echelon.start(*echelon.train_arguments("--name", "a", **settings))
    run = echelon.folder / "runs/a"
    wait_for(lambda: (run / "state.safetensors").exists(), first, "no state came")
    for arguments in ([], ["--nproc", 2]):
        second = echelon("train", "--resume", "runs/a", *arguments)
        assert second.returncode == 2, second.stdout + second.stderr
        assert f"runs/a is in use by process {first.pid} on " in second.stderr, second.stderr
    first.send_signal(signal.SIGINT)
    out, err = first.communicate(timeout=90)
    assert first.returncode == 130 and err == "", err
    done = steps_done(run)
    assert [line["step"] for line in metrics(run)] == list(range(1, done + 1))
    assert not (run / ".lock").exists()
    resumed = echelon("train", "--resume", "runs/a", "--set", f"train.steps={done + 5}")
    assert resumed.returncode == 0, resumed.stderr


# ---- From another folder


def test_a_run_goes_on_from_another_folder(echelon):
    whole = echelon.train_well("whole", train_steps=6)
    run = echelon.train_well("a", train_steps=4)
    elsewhere = echelon.folder / "elsewhere"
    elsewhere.mkdir()
    result = type(echelon)(elsewhere)("train", "--resume", "../runs/a", "--set", "train.steps=6")
    assert result.returncode == 0, result.stderr
    assert metrics(run) == metrics(whole)


# ---- Times


def test_times_can_be_plotted_over_a_run_and_its_continuation(echelon):
    began = time.time()
    run = echelon.train_well("a", train_steps=4)
    assert echelon("train", "--resume", "runs/a", "--set", "train.steps=8").returncode == 0
    times = [json.loads(line) for line in (run / "times.jsonl").read_text().splitlines()]
    assert [line["step"] for line in times] == list(range(1, 9))
    for key in ("time", "elapsed_s"):
        values = [line[key] for line in times]
        assert values == sorted(values) and values[0] < values[-1], values
    assert began - 1 < times[0]["time"] and times[-1]["time"] < time.time() + 1
    assert times[-1]["elapsed_s"] < time.time() - began + 1
