"""echelon lab: three ways to distribute one fine-tuning, whose results are those of their jobs; the table of what ranks
exchange; and what is refused or interrupted leaves nothing behind."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import conftest
import pytest
from cli_test import listing, refused  # noqa: F401
from conftest import Echelon, metrics
from terminal_test import Watched

STRATEGIES = ["data_parallel", "zero3", "servers"]
STEPS = 6
TABLE_TITLES = re.compile(r"^exchange +size +algorithm +link +predicted +measured +hidden$", re.M)


def words(**settings):
    return [word for key, value in settings.items() for word in ("--set", f"{key.replace('_', '.', 1)}={value}")]


# ---- A whole lab, of few steps


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A lab that has ended: its program, what it printed and its results."""
    program = Echelon(tmp_path_factory.mktemp("lab"))
    result = program("lab", "--steps", STEPS, "--pretraining", 4, "--no-sweep", "--json", "results.json",
                     *words(train_threads=1, train_batch=16, train_validate_samples=300))
    assert result.returncode == 0, result.stdout + result.stderr
    return program, result, json.loads((program.folder / "results.json").read_text())


def read(path):
    return json.loads(path.read_text())


def test_the_results_are_those_of_the_jobs(done):
    program, _, results = done
    lab = program.folder / "lab"
    assert set(results) == {"bag_of_words_accuracy", "bag_of_words_held_out_accuracy", "strategies", "validated", "sweep",
                            "seconds"}
    assert 0.5 < results["bag_of_words_accuracy"] < 0.8 and 0.4 < results["bag_of_words_held_out_accuracy"] < 0.8
    assert results["validated"] == 2000 and results["sweep"] == [] and results["seconds"] > 0
    assert list(results["strategies"]) == STRATEGIES
    for name, strategy in results["strategies"].items():
        assert set(strategy) == {"accuracy", "held_out_accuracy", "f1", "bytes", "step_ms", "memory", "exchanges", "run"}
        summary, run = read(lab / "jobs" / f"{name}.json"), program.folder / strategy["run"]
        assert run == lab / "runs" / name
        assert strategy["accuracy"] == summary["val_accuracy"] and 0 <= strategy["accuracy"] <= 1
        assert strategy["f1"] == summary["val_f1"] and strategy["step_ms"] == summary["step_ms"] > 0
        ledger = read(run / "ledger.json")
        assert strategy["bytes"] == sum(entry["bytes"] for entry in ledger["operations"]) > 0
        assert {entry["rank"] for entry in ledger["operations"]} == {0, 1}, "of both ranks"
        assert strategy["memory"] == [{"rank": rank["rank"], "tensors_at_peak_bytes": rank["tensors_at_peak_bytes"]}
                                      for rank in read(run / "memory.json")["ranks"]]
        assert [rank["rank"] for rank in strategy["memory"]] == [0, 1]
        assert strategy["exchanges"] == read(run / "exchanges.json")
    assert read(lab / "lab.json") == results


def test_the_three_ways_train_alike(done):
    """Of two workers every sum has two terms, which are the same in either order."""
    program, _, results = done
    losses = {name: [line["loss"] for line in metrics(program.folder / strategy["run"]) if "loss" in line]
              for name, strategy in results["strategies"].items()}
    assert len(losses["data_parallel"]) == STEPS
    assert len(set(losses["data_parallel"])) == STEPS, "it learns something"
    weights = {name: (program.folder / strategy["run"] / "weights/model.safetensors").read_bytes()
               for name, strategy in results["strategies"].items()}
    for other in ("zero3", "servers"):
        assert losses[other] == losses["data_parallel"], other
        assert weights[other] == weights["data_parallel"], other
        assert results["strategies"][other]["accuracy"] == results["strategies"]["data_parallel"]["accuracy"], other


def test_held_out_sentences_are_the_second_half_of_those_to_validate(done):
    """A model that is right for a share of all is right for that share of the two halves together."""
    program, _, results = done
    data = program.folder / "lab/data"
    held_out = (data / "held_out.tsv").read_text().splitlines()[1:]
    assert held_out == (data / "dev.tsv").read_text().splitlines()[1001:]
    strategy = results["strategies"]["zero3"]
    (program.folder / "seen.tsv").write_text("\n".join((data / "dev.tsv").read_text().splitlines()[:1001]) + "\n")
    result = program("evaluate", strategy["run"], "--data", "seen.tsv", "--json", "seen.json")
    assert result.returncode == 0, result.stderr
    seen = read(program.folder / "seen.json")["accuracy"]
    for file in ("seen.tsv", "seen.json"):
        (program.folder / file).unlink()
    assert (seen + strategy["held_out_accuracy"]) / 2 == pytest.approx(strategy["accuracy"], abs=1e-9)


def test_zero_shares_out_the_state_and_sends_more(done):
    strategies = done[2]["strategies"]
    states = {name: [rank["tensors_at_peak_bytes"]["optimizer"] for rank in strategy["memory"]]
              for name, strategy in strategies.items()}
    assert states["data_parallel"][0] == states["data_parallel"][1]
    assert sum(states["zero3"]) < 1.1 * states["data_parallel"][0]
    assert strategies["zero3"]["bytes"] > 1.2 * strategies["data_parallel"]["bytes"]


def test_the_tables_have_the_exchanges_of_each_way(done):
    def kinds(name):
        return {(row["purpose"], row["operation"]) for row in done[2]["strategies"][name]["exchanges"]["exchanges"]}

    assert kinds("data_parallel") == {("gradients", "all_reduce")}
    assert kinds("zero3") == {("parameters", "all_gather"), ("gradients", "reduce_scatter")}
    assert kinds("servers") == {("pull", "receive"), ("push", "send")}
    servers = done[2]["strategies"]["servers"]["exchanges"]["exchanges"]
    assert {(row["part"], row["link"]) for row in servers} == {(0, "here"), (1, "tcp")}
    for strategy in done[2]["strategies"].values():
        assert strategy["exchanges"]["steps"] == STEPS - 1, "the first one warms up"


def test_a_lab_writes_what_a_reader_may_look_at(done):
    lab = done[0].folder / "lab"
    assert sorted(path.name for path in done[0].folder.iterdir()) == ["lab", "results.json"]
    assert sorted(path.name for path in lab.iterdir()) == ["data", "jobs", "lab.json", "runs", "text", "tokenizer"]
    jobs = ["encoder", *STRATEGIES]
    assert listing(lab / "jobs") == sorted([*(f"{job}.{kind}" for job in jobs for kind in ("json", "toml")),
                                            *(f"{strategy}-scores.json" for strategy in STRATEGIES)])
    assert sorted(path.name for path in (lab / "runs").iterdir()) == sorted(jobs)
    for name, count in (("train.tsv", 40000), ("dev.tsv", 2000)):
        lines = (lab / "data" / name).read_text().splitlines()
        assert lines[0] == "sentence\tlabel" and len(lines) == count + 1
        assert {line.split("\t")[1] for line in lines[1:]} == {"0", "1"}


def test_a_pipe_gets_no_codes_and_lines_that_fit(done):
    out = done[1].stdout
    assert "\x1b" not in out and "\r" not in out and done[1].stderr == ""
    assert [line for line in out.splitlines() if len(line) > 80 and not line.startswith("$ ")] == []
    assert re.findall(r"^\d\. (.*)$", out, re.M) == ["The data", "The encoder", "Fine-tuning on two workers", "Results"]
    assert len(TABLE_TITLES.findall(out)) == len(STRATEGIES), out
    results = out[out.index("4. Results"):]
    for name, strategy in zip(("data parallel", "ZeRO-3", "parameter servers"), done[2]["strategies"].values()):
        shares = rf"{100 * strategy['accuracy']:.1f} % +{100 * strategy['held_out_accuracy']:.1f} %"
        assert re.search(rf"^{name} +{shares} ", results, re.M), results
    shares = rf"{100 * done[2]['bag_of_words_accuracy']:.1f} % +{100 * done[2]['bag_of_words_held_out_accuracy']:.1f} %"
    assert re.search(rf"^bag of words +{shares}$", results, re.M), results


def printed_commands(done):
    return [shlex.split(line[2:]) for line in done[1].stdout.splitlines() if line.startswith("$ ")]


def test_the_commands_that_it_prints_can_be_run_again(done, tmp_path):
    """In the lab's folder, as they are, as a new run."""
    program, commands = done[0], printed_commands(done)
    evaluations = [command for command in commands if command[1] == "evaluate"]
    assert [command[2:] for command in evaluations] == [[f"runs/{job}", "--data", "data/held_out.tsv"] for job in STRATEGIES]
    commands = [command for command in commands if command[1] == "train"]
    assert [command[:3] for command in commands] == [["echelon", "train", f"jobs/{job}.toml"] for job in ["encoder", *STRATEGIES]]
    shutil.copytree(program.folder / "lab", tmp_path / "lab")
    again = Echelon(tmp_path / "lab")
    before = set((again.folder / "runs").iterdir())
    result = again(*commands[2][1:])
    assert result.returncode == 0, result.stdout + result.stderr
    run, = set((again.folder / "runs").iterdir()) - before
    for file in ("metrics.jsonl", "ledger.json"):
        assert (run / file).read_bytes() == (program.folder / "lab/runs/zero3" / file).read_bytes(), file


def test_the_exercises_of_the_page_run(done, tmp_path):
    page = (Path(__file__).parents[2] / "docs/lab.md").read_text()
    commands = [" ".join(command.split()) for command in re.findall(r"`(echelon train [^`]+)`", page.partition("## To try")[2])]
    assert len(commands) == 5
    shutil.copytree(done[0].folder / "lab", tmp_path / "lab")
    lab = Echelon(tmp_path / "lab")
    for command in commands:
        result = lab(*shlex.split(command)[1:], *words(train_steps=3, train_threads=1, train_validate_every=0))
        assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"


def test_a_job_is_a_file_that_says_how_it_differs(done):
    jobs = done[0].folder / "lab/jobs"
    plain = (jobs / "data_parallel.toml").read_text()
    assert (jobs / "zero3.toml").read_text() == plain + "\n[parallel]\nzero = 3\n"
    assert (jobs / "servers.toml").read_text() == plain + "\n[server]\ncount = 2\n"
    assert f"steps = {STEPS}\n" in plain and 'init = "runs/encoder/weights"' in plain
    assert "steps = 4\n" in (jobs / "encoder.toml").read_text()


def test_a_job_that_fails_keeps_the_results_of_those_before(echelon, texts):
    """ZeRO-3 cannot make its run here."""
    lab = begin(echelon, "--data", "texts", "--no-sweep", "--json", "results.json", pretraining=20)
    runs = echelon.folder / "lab/runs"
    wait_for(runs.exists, lab)
    (runs / "zero3").mkdir()
    out, err = lab.communicate(timeout=100)
    assert lab.returncode == 2, out + err
    assert "runs/zero3 exists" in err and "Results" not in out
    results = read(echelon.folder / "lab/lab.json")
    assert list(results["strategies"]) == ["data_parallel"] and results["sweep"] == []
    assert results["strategies"]["data_parallel"]["accuracy"] is not None
    assert read(echelon.folder / "results.json") == results
    assert "lab/lab.json has the results" in re.sub(r"\s+", " ", out)


def test_labels_of_a_file_are_shown_by_their_names(echelon, texts):
    """And texts without what a terminal would interpret."""
    rows = [("good \x1b[31mred", "praise"), ("bad", "an objection")]
    for name in ("train.tsv", "dev.tsv"):
        (texts / name).write_text(table(rows * 8))
    result = echelon("lab", "--data", "texts", *SHORT, *words(train_threads=1, train_batch=8))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "\n  praise    good \\x1b[31mred\n  an objection bad\n" in result.stdout
    assert "positive" not in result.stdout and "\x1b" not in result.stdout


# ---- What is refused


def table(rows):
    return "".join("\t".join(map(str, row)) + "\n" for row in [("sentence", "label"), *rows])


@pytest.fixture
def texts(tmp_path):
    """A folder like that of SST-2."""
    folder = tmp_path / "texts"
    folder.mkdir()
    rows = [(f"the plot is {word} and {word}", label) for word, label in (("fine", 1), ("bland", 0))]
    (folder / "train.tsv").write_text(table(rows * 40))
    (folder / "dev.tsv").write_text(table(rows * 4))
    return folder


SHORT = ["--steps", 1, "--pretraining", 1, "--no-sweep"]  # for a lab that begins although it should not


def test_a_folder_that_exists_is_refused(echelon, refused):
    (echelon.folder / "lab").mkdir()
    assert refused("lab", *SHORT) == "lab exists; choose another folder for the lab with --out"
    (echelon.folder / "file").touch()
    assert "file exists" in refused("lab", *SHORT, "--out", "file")
    assert "file/lab" in refused("lab", *SHORT, "--out", "file/lab")


@pytest.mark.parametrize("key, value", [("parallel.zero", "3"), ("server.count", "1"), ("train.validate_every", "1"),
                                        ("train.save_last", "false"), ("train.steps", "3"), ("model.layers", "2"),
                                        ("comm.algorithm", "shared")])
def test_options_that_the_lab_sets_itself_are_refused(refused, key, value):
    assert refused("lab", *SHORT, "--set", f"{key}={value}").startswith(f"--set {key}: the lab sets {key} itself; ")


def test_options_that_a_job_would_refuse_are_refused_first(refused):
    assert "train.batch=2" in refused("lab", *SHORT, *words(train_batch=1))  # of two ranks
    assert "zero.offload" in refused("lab", *SHORT, *words(zero_offload="host"))  # of data parallel


def test_a_gpu_that_is_not_there_is_refused(refused):
    assert "there is no GPU" in refused("lab", *SHORT, *words(train_device="cuda"))


def test_a_model_that_is_none_is_refused(echelon, refused, texts):
    assert "--model nothing: there is no config.json" in refused("lab", *SHORT, "--model", "nothing")
    assert "--model texts: there is no config.json" in refused("lab", *SHORT, "--model", "texts")


def test_a_model_that_cannot_classify_is_refused(echelon, refused, texts):
    run = echelon.train_well("gpt")
    assert "family gpt2 cannot classify" in refused("lab", "--model", run / "weights")


def test_options_of_the_own_encoder_are_refused_beside_a_model(echelon, refused, texts):
    run = echelon.train_well("gpt")
    for option, value in (("--pretraining", 1), ("--shape", "distilbert")):
        assert f"{option}{' distilbert' if option == '--shape' else ''} is for the encoder" in refused(
            "lab", "--model", run / "weights", option, value)


def test_data_that_is_none_is_refused(refused, texts):
    assert "--data nothing: there is no train.tsv" in refused("lab", *SHORT, "--data", "nothing")
    (texts / "dev.tsv").unlink()
    assert "--data texts: there is no dev.tsv" in refused("lab", *SHORT, "--data", "texts")


@pytest.mark.parametrize("content, says", [
    ("sentence\tlabel\nfine\t1\nbad\n", "dev.tsv, line 3: the line has 1 column and the first has 2"),
    ("sentence\tlabel\nfine\t2\n", "dev.tsv, line 2: label 2 is unknown"), ("sentence\tlabel\n", "dev.tsv has a header and no record"),
    ("text\tlabel\nfine\t1\n", "dev.tsv has no column sentence"), ("", "dev.tsv")])
def test_data_that_is_spoiled_is_refused(refused, texts, content, says):
    (texts / "dev.tsv").write_text(content)
    assert says in refused("lab", *SHORT, "--data", "texts")


def test_results_with_no_place_are_refused(refused):
    assert "nowhere" in refused("lab", *SHORT, "--json", "nowhere/results.json")


@pytest.mark.parametrize("assignment, says", [("train.stepz=1", "did you mean train.steps?"), ("model.layers=two", "model.layers"),
                                              ("train.batch=0", "train.batch"), ("", "--set"), ("train.device=tpu", "cuda")])
def test_options_that_do_not_exist_are_refused(refused, assignment, says):
    assert says in refused("lab", *SHORT, "--set", assignment)


@pytest.mark.parametrize("option, value", [("--steps", "0"), ("--steps", "x"), ("--pretraining", "-1"), ("--shape", "large")])
def test_values_out_of_bounds_are_refused(refused, option, value):
    assert option in refused("lab", option, value)


def test_a_launcher_around_it_is_refused(refused, monkeypatch):
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                        "MASTER_PORT": "29999"}.items():
        monkeypatch.setitem(conftest.ENVIRONMENT, name, value)
    assert "without a launcher" in refused("lab", *SHORT)


# ---- A job that fails, and Ctrl-C


def begin(echelon, *arguments, pretraining=1000000):
    return echelon.start("lab", "--steps", 2, "--pretraining", pretraining, *arguments, *words(train_threads=1, train_batch=8))


def wait_for(condition, lab, seconds=60, pause=0.01):
    end = time.monotonic() + seconds
    while not condition():
        assert lab.poll() is None, lab.communicate()
        assert time.monotonic() < end, "it did not come so far"
        time.sleep(pause)


def test_the_exit_code_is_that_of_a_job_that_fails(echelon, texts):
    result = echelon("lab", "--data", "texts", *SHORT, *words(train_threads=1, train_batch=64, train_memory_mib=1))
    assert result.returncode == 2, result.stdout + result.stderr
    assert "train.memory_mib" in result.stderr
    assert "Results" not in result.stdout and not (echelon.folder / "lab/lab.json").exists(), "there are none"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_job_ends_the_lab(echelon, texts, how):
    lab = begin(echelon, "--data", "texts", "--no-sweep")
    steps = echelon.folder / "lab/runs/encoder/metrics.jsonl"
    wait_for(lambda: steps.exists() and steps.read_bytes().count(b"\n") > 2, lab)
    lab.send_signal(how)
    out, err = lab.communicate(timeout=60)
    assert lab.returncode == 130, out + err
    assert "Fine-tuning" not in out and not (echelon.folder / "lab/lab.json").exists()
    assert listing(echelon.folder / "lab/jobs") == ["encoder.toml"]


def is_mounted(folder):
    """os.path.ismount does not see a folder that is bound to itself, as ip does with this one."""
    return any(line.split()[4] == folder for line in Path("/proc/self/mountinfo").read_text().splitlines())


def hosts():
    folder = Path("/run/netns")
    return {path.name for path in folder.iterdir() if path.name.startswith("echelon-lab-")} if folder.exists() else set()


@pytest.fixture
def namespaces():
    """Skips where there can be none, for the same reasons as the lab."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.skip("network namespaces need root and the programs ip and tc")
    name, mounted = f"echelon-test-{os.getpid()}", is_mounted("/run/netns")
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    entered = subprocess.run(["ip", "netns", "exec", name, "true"], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True)
    if not mounted:
        subprocess.run(["umount", "/run/netns"], capture_output=True)
    if made.returncode or entered.returncode:
        pytest.skip(f"network namespaces do not work here: {(made.stderr + entered.stderr).strip()}")
    return mounted


@pytest.fixture
def sweeping(echelon, texts, namespaces):
    """A lab that comes to its sweep soon; it leaves no hosts behind, whatever happens to it."""
    before = hosts()
    lab = echelon.start("lab", "--data", "texts", "--steps", 2, "--pretraining", 1, *words(train_threads=1, train_batch=8),
                        start_new_session=True)
    lab.hosts = {f"echelon-lab-{lab.pid}-{i}" for i in range(2)}
    yield lab
    assert not hosts() & lab.hosts
    if not before | hosts():  # otherwise others have hosts meanwhile
        assert is_mounted("/run/netns") == namespaces


@pytest.mark.parametrize("when", ["the first host appears", "both hosts are there", "a job runs"])
def test_an_interrupted_sweep_leaves_no_hosts(echelon, sweeping, when):
    lab, runs = sweeping, echelon.folder / "lab/runs"
    wait_for({"the first host appears": lambda: hosts() & lab.hosts, "both hosts are there": lambda: hosts() >= lab.hosts,
              "a job runs": lambda: list(runs.glob("sweep-*/metrics.jsonl"))}[when], lab, pause=0.0005)
    os.killpg(lab.pid, signal.SIGINT)  # as Ctrl-C, which programs that the lab runs get too
    out, err = lab.communicate(timeout=60)
    assert lab.returncode == 130, out + err
    assert "Results" not in out and err == ""


def test_a_reader_that_goes_away_during_the_sweep_leaves_no_hosts(sweeping):
    wait_for(lambda: hosts() >= sweeping.hosts, sweeping)
    sweeping.stdout.close()
    assert sweeping.wait(timeout=60) in (128 + signal.SIGPIPE, -signal.SIGPIPE)
    assert sweeping.stderr.read() == ""


# ---- echelon train --trace buckets


def traced(echelon, *arguments, **settings):
    run = echelon.train_well("job", "--nproc", 2, "--trace", "buckets", *arguments, train_steps=STEPS, train_batch=8,
                             parallel_bucket_mib=0.01, **settings)
    return run, read(run / "exchanges.json")


@pytest.mark.parametrize("settings", [{}, {"parallel_zero": 3, "zero_group": 0.01}, {"parallel_zero": 1},
                                      {"parallel_pipeline": 2, "train_micro_batches": 2, "model_layers": 2}], ids=str)
def test_the_bytes_of_the_table_are_those_of_the_ledger(echelon, settings):
    """The table leaves the first step out, and every step sends the same."""
    run, table = traced(echelon, **settings)
    assert table["rank"] == 0 and table["steps"] == STEPS - 1
    sent = {}
    for entry in read(run / "ledger.json")["operations"]:
        if entry["rank"] == 0:
            key = entry["tag"], entry["operation"]
            sent[key] = sent.get(key, 0) + entry["bytes"]
    rows = table["exchanges"]
    assert len({row["name"] for row in rows}) == len(rows) > 1
    for row in rows:
        tag = row["purpose"] if row["part"] < 0 else f"{row['purpose']} {row['part']}"
        whole = sent[tag, row["operation"]] if row["operation"] != "receive" else 0
        assert row["sent"] * STEPS == whole * (STEPS - 1), row
        assert row["times"] % (STEPS - 1) == 0 and row["measured_ms"] > 0 and 0 <= row["hidden"] <= 1, row
        if row["operation"] == "receive":
            assert row["algorithm"] == row["link"] == "", "the sender counts it"
        else:
            assert row["algorithm"] and row["link"] == "shared", row
        assert (row["predicted_ms"] > 0) == (row["operation"] not in ("send", "receive")), row


def test_validations_do_not_count_as_exchanges_of_steps(echelon):
    """With ZeRO-3 they gather the parameters too."""
    settings = dict(parallel_zero=3, zero_group=0.01, data_validation=0.1)
    _, often = traced(echelon, train_validate_every=2, **settings)
    assert any(row["sent"] for row in often["exchanges"])
    shutil.rmtree(echelon.folder / "runs")
    _, never = traced(echelon, train_validate_every=0, **settings)
    assert [(row["name"], row["sent"]) for row in often["exchanges"]] == [(row["name"], row["sent"]) for row in never["exchanges"]]


def test_what_each_bucket_takes_adds_up_to_the_gradients(echelon):
    _, table = traced(echelon, train_precision="fp64")
    block, width = 12 * 32 * 32 + 13 * 32, 32
    assert sum(row["bytes"] for row in table["exchanges"]) == 8 * (256 * width + 32 * width + block + 2 * width)


def test_the_table_is_shown_once_at_the_end_of_a_pipe(echelon):
    result = echelon.train("--nproc", 2, "--trace", "buckets", train_steps=STEPS, train_batch=8)
    assert result.returncode == 0, result.stdout + result.stderr
    assert len(TABLE_TITLES.findall(result.stdout)) == 1 and "\x1b" not in result.stdout
    head = re.search(r"^mean step ([\d.]+) ms: ([\d.]+) computing, ([\d.]+) waiting, ([\d.]+) update, ([\d.]+) other$", result.stdout, re.M)
    step, *parts = map(float, head.groups())
    assert sum(parts) == pytest.approx(step, abs=0.03)
    assert max(map(len, result.stdout.splitlines())) <= 80, result.stdout
    assert result.stdout.index(f"step {STEPS}/{STEPS}") < result.stdout.index("\nexchange ")


def test_a_trace_changes_nothing_that_a_job_computes(echelon):
    run, _ = traced(echelon)
    plain = echelon.train_well("plain", "--nproc", 2, train_steps=STEPS, train_batch=8, parallel_bucket_mib=0.01)
    assert metrics(run) == metrics(plain)
    assert read(run / "ledger.json")["sent_bytes"] == read(plain / "ledger.json")["sent_bytes"]
    assert not (plain / "exchanges.json").exists()


def test_one_rank_exchanges_nothing_to_show(refused, echelon):
    sentence = refused(*echelon.train_arguments("--trace", "buckets"))
    assert sentence == "--trace buckets shows what ranks on CPUs exchange: start several with --nproc"


@pytest.mark.parametrize("rows", [8, 24])
def test_a_terminal_shows_the_whole_table_at_the_end(echelon, rows):
    """While it trains, as many lines as fit."""
    job = Watched(echelon, echelon.train_arguments("--nproc", 2, "--name", "job", "--trace", "buckets", train_steps=40, train_batch=8,
                                                   model_layers=6, parallel_zero=3, zero_group=0.01), rows=rows)
    code, text = job.end()
    assert code == 0, text
    table = read(echelon.folder / "runs/job/exchanges.json")
    assert table["steps"] == 39 and len(table["exchanges"]) > 8
    end = text[text.rindex("step 40/40"):].replace("\r", "")
    assert "\x1b[J" not in end[end.index("mean step"):], "the table stays"
    assert len(TABLE_TITLES.findall(end)) == 1, end
    lines = end[end.index("\nexchange "):].splitlines()[2:]
    for line, row in zip(lines, table["exchanges"]):
        times = round(row["times"] / table["steps"])
        assert line.startswith(row["name"] + (f" x{times} " if times > 1 else " ")) and f"{row['measured_ms']:.2f} ms" in line, (line, row)
    assert max(len(line) for line in lines[:len(table["exchanges"])]) < 80
