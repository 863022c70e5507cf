"""Runs: one seed gives one sequence of bits, through Ctrl-C and a kill too; a NaN and a full disk spoil nothing; the
progress suits where it is shown."""

import contextlib
import fcntl
import json
import os
import pty
import re
import resource
import secrets
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import termios
import time

import pytest
from conftest import ENVIRONMENT, metrics

LONG = dict(train_steps=400)  # long enough to be interrupted on the way


def weights(run):
    return (run / "weights" / "model.safetensors").read_bytes()


def state_step(path):
    """The step that a state file was saved after. Reads the header alone."""
    data = path.read_bytes()
    header = json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])
    return int(header["__metadata__"]["step"])


def interrupt(process, run, after, how):
    """Sends a signal once `after` more lines of metrics have come; gives the exit status."""
    def lines():
        path = run / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    wanted, deadline = lines() + after, time.monotonic() + 60
    while lines() < wanted:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no steps came"
        time.sleep(0.002)
    process.send_signal(how)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


# ---- Same seed, same bits


@pytest.mark.parametrize("settings", [
    dict(train_validate_every=4),
    dict(train_threads=2, model_width=128, data_source="random"),
    dict(train_micro_batches=2, model_tied=False),
    dict(train_precision="bf16"),
    dict(optim_name="sgd", optim_nesterov=True, optim_rate=0.1),
    dict(data_source="random", model_vocab=77),
], ids=lambda settings: "-".join(settings))
def test_one_seed_gives_one_sequence_of_bits(echelon, settings):
    first, second = (echelon.train_well(name, **settings) for name in "ab")
    assert metrics(first) == metrics(second)
    assert weights(first) == weights(second)
    losses = [m["loss"] for m in metrics(first) if "loss" in m]
    assert [m["step"] for m in metrics(first) if "loss" in m] == list(range(1, 13))
    assert len(set(losses)) == 12 and losses[-1] < losses[0] + 0.5


def test_another_seed_gives_other_bits(echelon):
    first, second = echelon.train_well("a", train_seed=1), echelon.train_well("b", train_seed=2)
    assert metrics(first)[0]["loss"] != metrics(second)[0]["loss"]
    assert weights(first) != weights(second)


def test_metrics_have_a_line_a_step_and_one_a_validation(echelon):
    lines = metrics(echelon.train_well("a", train_steps=5, train_validate_every=2))
    assert [(m["step"], "val_loss" in m) for m in lines] == [
        (1, False), (2, False), (2, True), (3, False), (4, False), (4, True), (5, False), (5, True)]
    step = lines[0]
    assert set(step) == {"step", "loss", "bits_per_byte", "grad_norm", "rate", "tokens"}
    assert step["tokens"] == 4 * 32 and step["grad_norm"] > 0
    assert step["bits_per_byte"] == pytest.approx(step["loss"] / 0.6931471805599453)


def test_a_run_directory_holds_what_it_should(echelon):
    run = echelon.train_well("a")
    assert {p.name for p in run.iterdir()} == {"config.toml", "plan.json", "metrics.jsonl", "times.jsonl", "ledger.json",
                                               "memory.json", "rank0.log", "state.safetensors", "weights"}
    assert {p.name for p in (run / "weights").iterdir()} == {"config.json", "model.safetensors"}
    memory = json.loads((run / "memory.json").read_text())
    assert memory["tensors_peak_bytes"] == sum(memory["tensors_at_peak_bytes"].values()) > 0
    again = echelon.train_well("b", run / "config.toml")
    assert metrics(again) == metrics(run), "the resolved configuration does not give the same run"


# ---- Interrupted and resumed


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_an_interrupted_run_goes_on_bit_for_bit(echelon, how):
    whole = echelon.train_well("whole", **LONG)
    run = echelon.folder / "runs" / "a"
    status, out, err = interrupt(echelon.start(*echelon.train_arguments("--name", "a", **LONG)), run, 20, how)
    assert status == 130 and err == "", err
    stopped = len(metrics(run))
    assert 20 <= stopped < 400, "it was not interrupted on the way"
    assert f"interrupted after step {stopped}" in out and "--resume runs/a" in out
    assert state_step(run / "state.safetensors") == stopped and not (run / "weights").exists()
    resumed = echelon("train", "--resume", "runs/a")
    assert resumed.returncode == 0, resumed.stderr
    assert metrics(run) == metrics(whole)
    assert weights(run) == weights(whole)


def test_a_run_interrupted_again_and_again_goes_on_bit_for_bit(echelon):
    # With a validation after every step, interruptions come before, in and after one.
    settings = dict(train_steps=200, train_validate_every=1, train_validate_samples=4)
    whole = echelon.train_well("whole", **settings)
    run = echelon.folder / "runs" / "a"
    command = echelon.train_arguments("--name", "a", **settings)
    for _ in range(5):
        status, _, err = interrupt(echelon.start(*command), run, 21, signal.SIGINT)
        assert status == 130, err
        command = ["train", "--resume", "runs/a"]
    assert echelon(*command).returncode == 0
    assert metrics(run) == metrics(whole)
    assert weights(run) == weights(whole)


def test_a_killed_run_goes_on_from_its_last_state_bit_for_bit(echelon):
    settings = dict(LONG, train_save_every=7, train_validate_every=5)
    whole = echelon.train_well("whole", **settings)
    run = echelon.folder / "runs" / "a"
    process = echelon.start(*echelon.train_arguments("--name", "a", **settings))
    status, _, _ = interrupt(process, run, 40, signal.SIGKILL)
    assert status == -signal.SIGKILL
    assert state_step(run / "state.safetensors") % 7 == 0
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step":399,"lo')  # a line that the kill cut
    resumed = echelon("train", "--resume", "runs/a")
    assert resumed.returncode == 0, resumed.stderr
    assert metrics(run) == metrics(whole)
    assert weights(run) == weights(whole)


def test_a_run_of_bf16_goes_on_bit_for_bit(echelon):
    settings = dict(train_precision="bf16", train_steps=9, train_save_every=4)
    whole = echelon.train_well("whole", **settings)
    run = echelon.train_well("a", **(settings | dict(train_steps=5)))
    assert state_step(run / "state.safetensors") == 4
    assert echelon("train", "--resume", "runs/a", "--set", "train.steps=9").returncode == 0
    assert metrics(run) == metrics(whole) and weights(run) == weights(whole)


def test_a_run_from_before_there_were_families_goes_on(echelon):
    whole = echelon.train_well("whole", train_steps=9)
    run = echelon.train_well("a", train_steps=5)
    config = run / "config.toml"
    known = re.compile(r"family|kv_heads|ffn|norm_epsilon|rope_\w+")
    kept = [line for line in config.read_text().splitlines(True) if not known.match(line)]
    config.write_text("".join(kept))
    assert echelon("train", "--resume", "runs/a", "--set", "train.steps=9").returncode == 0
    assert metrics(run) == metrics(whole) and weights(run) == weights(whole)


def test_a_finished_run_says_so_and_can_be_given_more_steps(echelon):
    run = echelon.train_well("a", train_steps=4, train_validate_every=0)
    assert state_step(run / "state.safetensors") == 4
    again = echelon("train", "--resume", "runs/a")
    assert again.returncode == 2 and "has done its 4 steps" in again.stderr
    assert echelon("train", "--resume", "runs/a", "--set", "train.steps=6").returncode == 0
    assert [line["step"] for line in metrics(run)] == [1, 2, 3, 4, 5, 6]


def test_a_warm_up_that_never_ends_is_warned_of(echelon):
    assert "optim.warmup = 9" in echelon.train(train_steps=4, optim_warmup=9).stderr
    assert echelon.train(train_steps=4, optim_warmup=2).stderr == ""


def test_save_every_keeps_the_latest_state(echelon):
    run = echelon.train_well("a", train_steps=11, train_save_every=3)
    assert state_step(run / "state.safetensors") == 9
    assert [p.name for p in run.iterdir() if "state" in p.name] == ["state.safetensors"]


def test_a_finished_run_goes_on_when_given_more_steps(echelon):
    whole = echelon.train_well("whole", train_steps=10)
    run = echelon.train_well("a", train_steps=6, train_save_every=6)
    assert echelon("train", "--resume", "runs/a", "--set", "train.steps=10").returncode == 0
    assert metrics(run) == metrics(whole) and weights(run) == weights(whole)


# ---- NaN


@pytest.mark.parametrize("settings", [
    dict(optim_rate=1e30, optim_clip=0),
    dict(optim_name="sgd", optim_rate=100, optim_clip=0, train_steps=100),
    dict(optim_rate=1e30, train_precision="bf16"),
], ids=["adamw", "sgd", "bf16"])
def test_a_nan_never_reaches_the_weights(echelon, settings):
    settings = dict(settings, optim_warmup=0)
    result = echelon.train("--name", "a", **settings)
    assert result.returncode == 1, result.stdout + result.stderr
    run = echelon.folder / "runs" / "a"
    named = re.search(r"(NaN|infinite) at step (\d+)", result.stderr)
    assert named and result.stderr.count("\n") == 1, result.stderr
    last = int(named[2]) - 1
    assert last >= 1 and [m["step"] for m in metrics(run)] == list(range(1, last + 1))
    assert not (run / "weights").exists()

    state = run / "state.safetensors"
    assert state_step(state) == last
    load_file = pytest.importorskip("safetensors.torch").load_file
    assert all(t.isfinite().all() for t in load_file(state).values())
    good = echelon.train_well("good", **dict(settings, train_steps=last, train_save_every=last))
    assert state.read_bytes() == (good / "state.safetensors").read_bytes()
    assert metrics(good) == metrics(run)


def test_a_nan_before_any_update_is_not_blamed_on_the_rate(echelon):
    files = pytest.importorskip("safetensors.torch")
    run = echelon.train_well("a")
    file = run / "weights" / "model.safetensors"
    weights = files.load_file(file)
    weights["transformer.h.0.mlp.c_fc.bias"][3] = float("nan")
    files.save_file(weights, file, metadata={"format": "pt"})
    sizes = {key: None for key in ("model_layers", "model_width", "model_heads", "model_context")}
    result = echelon.train("--name", "b", model_init=run / "weights", **sizes)
    assert result.returncode == 1, result.stdout + result.stderr
    assert ("the loss became NaN at step 1; the weights are those after step 0. No update came before it, so "
            "optim.rate is not the cause: look at the weights it began with and at the data") in result.stderr
    assert result.stderr.count("optim.rate") == 1, result.stderr


def test_a_nan_is_reported_with_the_step_before_it(echelon):
    settings = dict(optim_clip=0, optim_warmup=0)
    result = echelon.train("--name", "grows", **settings, optim_name="sgd", optim_rate=100, train_steps=100)
    steps = metrics(echelon.folder / "runs" / "grows")
    assert steps[-1]["loss"] > steps[0]["loss"], "this rate makes the loss grow before it is NaN"
    assert (f"The loss was {steps[0]['loss']:.4g} at step 1 and {steps[-1]['loss']:.4g} at step {len(steps)}, so "
            "training diverged: a lower optim.rate or clipping (optim.clip) may help") in result.stderr, result.stderr
    result = echelon.train("--name", "breaks", **settings, optim_rate=1e30)
    first, = metrics(echelon.folder / "runs" / "breaks")
    assert (f"The step before had a loss of {first['loss']:.4g} and a gradient norm of {first['grad_norm']:.4g}: a "
            "lower optim.rate or clipping (optim.clip) may help, or step 2 has unusual data") in result.stderr, result.stderr


def test_a_run_that_met_a_nan_goes_on_with_a_lower_rate(echelon):
    settings = dict(optim_name="sgd", optim_rate=100, optim_clip=0, optim_warmup=0, train_steps=100)
    result = echelon.train("--name", "a", **settings)
    last = int(re.search(r"at step (\d+)", result.stderr)[1]) - 1
    resumed = echelon("train", "--resume", "runs/a", "--set", "optim.rate=1e-9", "--set", "optim.clip=1",
                      "--set", f"train.steps={last + 3}")
    # The weights may be beyond help, but if so that is said, with the same step.
    assert resumed.returncode == 0 or f"at step {last + 1};" in resumed.stderr
    assert f"resumed     after step {last}" in resumed.stdout


# ---- A disk that is full


def limit_file_size(size, ignore):
    """For a child: files may not grow past `size`; the signal that says so is ignored, or kills."""

    def apply():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN if ignore else signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return apply


@pytest.mark.parametrize("ignore", [True, False], ids=["refused", "killed"])
def test_a_save_that_fails_leaves_the_former_state_whole(echelon, ignore):
    whole = echelon.train_well("whole", train_steps=12, train_save_every=4)
    run = echelon.train_well("a", train_steps=4, train_save_every=4)
    before = (run / "state.safetensors").read_bytes()
    more = ["train", "--resume", "runs/a", "--set", "train.steps=12"]
    failed = echelon(*more, preexec_fn=limit_file_size(len(before) // 2, ignore))
    if ignore:
        assert failed.returncode == 1, failed.stdout + failed.stderr
        assert "state.safetensors" in failed.stderr and "File too large" in failed.stderr
        assert [p.name for p in run.iterdir() if "state" in p.name] == ["state.safetensors"], "a part was left"
    else:
        assert failed.returncode == -signal.SIGXFSZ
        assert len([p for p in run.iterdir() if p.name.startswith(".state.safetensors.")]) == 1
    assert (run / "state.safetensors").read_bytes() == before
    resumed = echelon(*more)
    assert resumed.returncode == 0, resumed.stderr
    assert [p.name for p in run.iterdir() if "state" in p.name] == ["state.safetensors"], "what a killed job left stays"
    assert metrics(run) == metrics(whole) and weights(run) == weights(whole)


@contextlib.contextmanager
def small_disk(folder, size):
    folder.mkdir()
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("only root can mount a small disk")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(path, leave):
    """Takes all of the disk but `leave` bytes."""
    disk = os.statvfs(path.parent)
    path.write_bytes(bytes(max(0, disk.f_bavail * disk.f_bsize - leave)))


def test_a_full_disk_leaves_the_former_state_whole(echelon):
    whole = echelon.train_well("whole", train_steps=12, train_save_every=4)
    with small_disk(echelon.folder / "runs" / "disk", "4m") as disk:
        inside = type(echelon)(disk)
        shutil.copy(echelon.folder / "text.txt", disk)
        run = inside.train_well("a", train_steps=4, train_save_every=4)
        before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
        more = ["train", "--resume", "runs/a", "--set", "train.steps=12"]
        for leave in (100_000, 0):  # room for all but the state; no room at all
            fill(disk / "filler", leave)
            failed = inside(*more)
            assert failed.returncode == 1, failed.stdout + failed.stderr
            assert "No space left" in failed.stderr and failed.stderr.count("\n") == 1, failed.stderr
            for path in (run / "state.safetensors", run / "weights" / "model.safetensors"):
                assert path.read_bytes() == before[path]
            (disk / "filler").unlink()
        assert inside(*more).returncode == 0
        assert metrics(run) == metrics(whole) and weights(run) == weights(whole)


# ---- What a person sees


def test_plain_output_has_no_escape_codes(echelon):
    result = echelon.train(train_validate_every=5)
    assert result.returncode == 0
    assert "\x1b" not in result.stdout and "\r" not in result.stdout and result.stderr == ""
    for word in ("model ", "data ", "run ", "step 12/12", "validation ", "bits/byte", "trained ", "memory ", "sample"):
        assert word in result.stdout, result.stdout


def on_terminal(command, folder, columns):
    """The program's output on a terminal of so many columns."""
    reader, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=terminal, stderr=subprocess.STDOUT,
                               env=ENVIRONMENT | {"TERM": "xterm"})
    os.close(terminal)
    out = b""
    with contextlib.suppress(OSError):  # the end of a terminal reads as an error
        while data := os.read(reader, 65536):
            out += data
    os.close(reader)
    assert process.wait(timeout=60) == 0, out
    return out.decode(errors="replace")


@pytest.mark.parametrize("columns", [120, 80, 50])
def test_a_terminal_shows_a_bar_that_redraws_itself(echelon, columns):
    command = [str(echelon.program), *echelon.train_arguments(train_steps=120, train_validate_every=60)]
    shown = on_terminal(command, echelon.folder, columns)
    drawn = [part for part in shown.split("\r") if "step " in part and "loss" in part]
    assert len(drawn) > 1 and all(part.startswith("\x1b[J") for part in drawn), shown
    assert "120/120" in drawn[-1]
    if columns >= 80:
        assert "━" in drawn[-1]
    for part in drawn:
        visible = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", part).split("\n")[0]
        assert len(visible) < columns, f"{len(visible)} columns of {columns}: {visible!r}"
    assert "validation" in shown


def test_ranks_that_were_told_different_things_do_not_train(echelon):
    command = " ".join(map(shlex.quote, [str(echelon.program), *echelon.train_arguments("--data", "text.txt")]))
    result = echelon("launch", "--nproc", 2, "--", "sh", "-c", f"{command} --set optim.rate=0.00$((RANK+1)) --set parallel.tensor=$((2-RANK))")
    assert result.returncode == 2, result.stderr
    assert ("ranks have different options: rank 1 has optim.rate = 0.002 where rank 0 has 0.001; "
            "parallel.tensor = 1 where rank 0 has 2") in result.stderr
    assert not (echelon.folder / "runs").exists()


def test_two_nodes_of_one_machine_meet_at_the_loopback(echelon):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**ENVIRONMENT, "ECHELON_TOKEN": secrets.token_hex(16)}
    nodes = [subprocess.Popen([str(echelon.program), "launch", "--nproc", "1", "--nodes", "2", "--node-rank", str(node),
                               "--rendezvous", f"127.0.0.1:{port}", "--", str(echelon.program), "topo", "--sizes", "64"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
             for node in range(2)]
    said = [node.communicate(timeout=60) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    assert "2 ranks on 1 host" in said[0][0]
