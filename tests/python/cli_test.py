"""The command line: bad input ends with one sentence, exit code 2 and nothing written; help, completion and the
summary say what they promise."""

import json
import os
import shutil
import struct
import subprocess
import tempfile
import tomllib
from pathlib import Path

import pytest

COMMANDS = ["train", "launch", "export", "evaluate", "generate", "lab", "info", "version", "completion"]


def listing(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


@pytest.fixture
def refused(echelon):
    """Runs the program, which must refuse: returns its one sentence."""

    def run(*arguments):
        before = listing(echelon.folder)
        result = echelon(*arguments)
        assert result.returncode == 2, result.stdout + result.stderr
        assert result.stdout == ""
        assert result.stderr.startswith("echelon: error: ") and result.stderr.endswith("\n")
        sentence = result.stderr[len("echelon: error: "):-1]
        assert sentence and "\n" not in sentence, result.stderr
        assert "Exception" not in sentence and "frame #" not in sentence
        assert listing(echelon.folder) == before, "a refused command left something behind"
        return sentence

    return run


@pytest.fixture
def refused_job(echelon, refused):
    """The same for 'train' with the suites' tiny model and the given settings."""
    return lambda *arguments, **settings: refused(*echelon.train_arguments(*arguments, **settings))


# ---- Configuration


@pytest.mark.parametrize("key, near", [("model.layer", "model.layers"), ("optim.lr", None), ("train.stepz", "train.steps"),
                                       ("modle.width", "model.width"), ("layers", "model.layers"), ("model", None)])
def test_an_unknown_key_names_the_nearest(refused, key, near):
    sentence = refused("train", "--set", f"{key}=1")
    assert key in sentence
    if near:
        assert f"did you mean {near}?" in sentence


def test_an_unknown_key_in_a_file_names_the_nearest_and_the_line(echelon, refused):
    (echelon.folder / "job.toml").write_text("[model]\nlayers = 2\nwidht = 64\n")
    sentence = refused("train", "job.toml")
    assert "model.widht" in sentence and "did you mean model.width?" in sentence and "job.toml, line 3" in sentence


@pytest.mark.parametrize("text", ["[model]\nlayers = 'two'", "[model]\nlayers = 2.5", "[train]\nseed = true",
                                  "[optim]\nrate = 'fast'", "[model]\ntied = 1", "model = 3", "[data]\nsource = 7",
                                  "[optim]\nname = ['adamw']"])
def test_a_wrong_type_in_a_file_is_refused(echelon, refused, text):
    (echelon.folder / "job.toml").write_text(text)
    assert "job.toml, line" in refused("train", "job.toml")


@pytest.mark.parametrize("assignment", ["model.layers=two", "model.layers=2.5", "model.tied=yes", "optim.rate=fast",
                                        "optim.rate=nan", "model.layers=", "model.layers", "=3", ""])
def test_a_wrong_type_on_the_command_line_is_refused(refused, assignment):
    refused("train", "--set", assignment)


@pytest.mark.parametrize("assignment", ["model.layers=0", "train.steps=-1", "optim.beta1=1.5", "data.validation=0.9",
                                        "train.threads=100000"])
def test_a_value_out_of_bounds_is_refused(refused, assignment):
    key, value = assignment.split("=")
    sentence = refused("train", "--set", assignment)
    assert key in sentence and value in sentence


@pytest.mark.parametrize("assignment, says", [("optim.name=lion", "adamw, sgd"), ("optim.schedule=step", "cosine"),
                                              ("train.precision=fp8", "bf16"), ("train.device=tpu", "cuda")])
def test_an_unknown_choice_shows_the_known_ones(refused, assignment, says):
    assert says in refused("train", "--set", assignment)


@pytest.mark.parametrize("content", [b"[model", b"\xff\xfe\x00", b"a = 1\na = 2"])
def test_a_file_that_is_not_toml_is_refused(echelon, refused, content):
    (echelon.folder / "job.toml").write_bytes(content)
    assert "job.toml" in refused("train", "job.toml")


def test_a_configuration_that_is_not_there_is_refused(echelon, refused):
    assert "job.toml" in refused("train", "job.toml")
    (echelon.folder / "jobs").mkdir()
    assert "jobs" in refused("train", "jobs")


def test_an_empty_configuration_is_all_defaults(echelon):
    (echelon.folder / "job.toml").touch()
    assert echelon("train", "job.toml", "--print-config").stdout == echelon("train", "--print-config").stdout


def test_options_that_do_not_fit_together_are_refused(refused_job):
    assert "model.heads" in refused_job(model_heads=3)
    assert "too small for 1 rank of 1000 micro-batches" in refused_job(train_micro_batches=1000)
    assert "vocab" in refused_job(model_vocab=100)
    assert "momentum" in refused_job(optim_name="sgd", optim_nesterov=True, optim_momentum=0)
    assert "graph" in refused_job(train_graph="on")


def test_a_model_too_large_for_any_machine_is_refused(refused_job):
    refused_job(model_width=10**12, model_heads=1)


def test_what_cannot_work_is_said_once_before_there_are_ranks(refused, refused_job):
    assert "5 ranks" in refused_job("--nproc", "5", train_batch=4)
    assert "no folder" in refused_job("--nproc", "2", "--json", "nowhere/summary.json", train_batch=4)
    assert "\"x\" is no size" in refused("topo", "--sizes", "x")
    assert "no folder" in refused("bench", "collectives", "--json", "nowhere/b.json")
    assert "train.memory_mib" in refused_job("--nproc", "2", train_memory_mib=0.1)


def test_a_blank_in_place_of_the_equals_sign_is_shown_as_it_should_be(refused):
    assert refused("train", "--set", "parallel.pipeline", "2").endswith("write --set parallel.pipeline=2")
    assert refused("train", "--nproc", "2", "--set", "optim.rate").endswith("write --set optim.rate=VALUE")


def test_a_resumed_run_takes_no_other_name(echelon, refused):
    echelon.train_well("a", train_steps=2)
    assert refused("train", "--resume", "runs/a", "--name", "b") == (
        "--resume goes on in runs/a, which keeps its name; leave --name out")


def test_two_flags_for_one_option_must_agree(echelon, refused):
    assert refused("train", "--data", "text.txt", "--set", "data.source=random") == (
        "--data text.txt and --set data.source=random differ; give one of them")
    assert refused("train", "--set", "comm.plan=a.json", "--plan", "b.json") == (
        "--plan b.json and --set comm.plan=a.json differ; give one of them")
    same = echelon("train", "--data", "text.txt", "--set", "data.source=text.txt", "--print-config")
    assert same.returncode == 0 and tomllib.loads(same.stdout)["data"]["source"] == "text.txt", same.stderr
    (echelon.folder / "job.toml").write_text("[data]\nsource = 'random'\n")
    changed = echelon("train", "job.toml", "--data", "text.txt", "--print-config")
    assert changed.returncode == 0 and tomllib.loads(changed.stdout)["data"]["source"] == "text.txt", changed.stderr


@pytest.mark.parametrize("arguments", [["train", "--resume", ""], ["train", "--join", ""], ["train", "--data", ""],
                                       ["train", "--plan", ""], ["train", "--json", ""], ["train", "--name", ""],
                                       ["verify", "--inject", ""], ["verify", "--html", ""], ["topo", "--mesh", ""],
                                       ["lab", "--out", ""], ["lab", "--model", ""], ["lab", "--data", ""], ["lab", "--json", ""],
                                       ["bench", "collectives", "--json", ""]])
def test_an_empty_value_is_refused_by_the_name_of_its_option(refused, arguments):
    sentence = refused(*arguments)
    assert sentence.startswith(f"{arguments[-2]} needs a value, but an empty one was given"), sentence
    assert refused(*arguments[:-2], f"{arguments[-2]}=").startswith(f"{arguments[-2]} needs a value")


def test_an_empty_word_and_one_that_is_not_utf8_are_refused(refused):
    assert refused("train", "").startswith("word 2 of the command line is empty")
    assert "is not UTF-8" in refused("train", "--name", os.fsdecode(b"a\xff"))
    assert "is not UTF-8" in refused("verify", "--json", os.fsdecode(b"\xed\xa0\x80"))


@pytest.mark.parametrize("option, value, says", [
    ("--tokens", "99999999999999999999", "99999999999999999999 is not an integer from 0 to 1000000000"),
    ("--tokens", "-1", "-1 is not an integer from 0"), ("--tokens", "1.5", "1.5 is not an integer"),
    ("--temperature", "-1", "-1 is not a number from 0 to 1000000"), ("--temperature", "nan", "nan is not a number"),
    ("--temperature", "inf", "inf is not a number"), ("--temperature", "1" * 300, "is not a number from 0 to 1000000"),
    ("--top", "-3", "-3 is not an integer from 0"), ("--seed", "-1", "-1 is not an integer from 0")])
def test_generate_refuses_numbers_out_of_bounds_in_few_words(refused, option, value, says):
    sentence = refused("generate", "weights", option, value)
    assert says in sentence and len(sentence) < 150, sentence


def test_what_a_job_names_must_be_there_on_one_rank_too(echelon, refused_job):
    assert "there is no file no.json to read a plan from" in refused_job(comm_plan="no.json")
    assert "'1979-05-27' is no network interface of this machine" in refused_job(net_interface="1979-05-27")
    assert "zero.offload_path: there is no folder nowhere" in refused_job(
        "--nproc", 2, parallel_zero=3, zero_offload="disk", zero_offload_path="nowhere")
    (echelon.folder / "plan.json").write_text('{"figures": {"shared": 1, "tcp": {}}}')
    assert "plan.json: figures.shared is 1, not an object with alpha" in refused_job(comm_plan="plan.json")
    (echelon.folder / "plan.json").write_text("{\n  nothing}")
    assert "plan.json is not JSON: it cannot be read on from line 2, column 4" in refused_job(comm_plan="plan.json")


def test_a_plan_with_a_negative_size_is_refused_with_its_place(echelon, refused_job):
    run = echelon.train_well("planned", "--nproc", 2, train_steps=1)
    plan = json.loads((run / "plan.json").read_text())
    plan["communication"]["choices"]["broadcast"][0]["up_to_bytes"] = -1
    (echelon.folder / "plan.json").write_text(json.dumps(plan))
    sentence = refused_job("--nproc", 2, comm_plan="plan.json")
    assert "plan.json: communication.choices.broadcast[0].up_to_bytes is -1, not an integer of at least 0" in sentence


@pytest.mark.parametrize("mib", ["1e-7", "0.999"])
def test_a_memory_limit_below_a_mib_is_refused(refused_job, mib):
    assert "train.memory_mib" in refused_job(train_memory_mib=mib)


def test_a_mistyped_flag_names_the_nearest(refused):
    assert "did you mean --nproc?" in refused("train", "--nprocs", "2")
    assert "did you mean --sizes?" in refused("bench", "collectives", "--size", "64")
    assert "see echelon train --help" in refused("train", "--frobnicate")


# ---- Data


def test_data_that_is_missing_or_empty_is_refused(echelon, refused_job):
    assert "nothing.txt" in refused_job(data_source="nothing.txt")
    (echelon.folder / "empty.txt").touch()
    assert "empty.txt" in refused_job(data_source="empty.txt")
    (echelon.folder / "folder").mkdir()
    assert "folder" in refused_job("--data", "folder")
    (echelon.folder / "folder" / "empty.txt").touch()
    (echelon.folder / "folder" / ".hidden").write_text("x" * 1000)
    assert "folder" in refused_job("--data", "folder")


def test_data_that_is_no_file_is_refused(echelon, refused_job):
    assert "/dev/zero" in refused_job(data_source="/dev/zero")
    os.mkfifo(echelon.folder / "pipe")
    refused_job(data_source="pipe")


def test_data_without_permission_is_refused(echelon):
    # Root may read everything, so it hands the question to a user who may not.
    nobody = dict(user=65534, group=65534, extra_groups=[]) if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory() as scratch:
        os.chmod(scratch, 0o777)
        echelon.folder = Path(scratch)
        try:
            able = echelon("version", **nobody).returncode == 0
        except PermissionError:
            able = False
        if not able:
            pytest.skip("no other user may run the program where it lies")
        (echelon.folder / "secret.txt").write_text("x" * 1000)
        (echelon.folder / "secret.txt").chmod(0)
        (echelon.folder / "secrets").mkdir(mode=0)
        for name in ("secret.txt", "secrets"):
            result = echelon(*echelon.train_arguments(data_source=name), **nobody)
            assert result.returncode == 2 and name in result.stderr and "Permission denied" in result.stderr
            assert result.stderr.count("\n") == 1 and listing(echelon.folder) == ["secret.txt", "secrets"]


@pytest.mark.parametrize("size", [1, 32])
def test_text_shorter_than_one_sequence_is_refused(echelon, refused_job, size):
    (echelon.folder / "short.txt").write_text("x" * size)
    sentence = refused_job(data_source="short.txt")  # a sequence and its last target: 33 bytes
    assert "short.txt" in sentence and "33" in sentence


def test_text_of_exactly_one_sequence_is_enough(echelon):
    (echelon.folder / "short.txt").write_text("x" * 33)
    echelon.train_well("a", data_source="short.txt", train_steps=2)


def test_validation_text_shorter_than_one_sequence_is_refused(echelon, refused_job):
    (echelon.folder / "short.txt").write_text("x" * 600)
    assert "validation" in refused_job(data_source="short.txt", train_validate_every=1)


# ---- Devices


def test_cuda_where_there_is_none_is_refused(echelon, refused_job):
    if "not built in" not in echelon("info").stdout and "0 GPUs" not in echelon("info").stdout:
        pytest.skip("this machine has a GPU")
    assert "train.device=cpu" in refused_job(train_device="cuda") or "use cpu" in refused_job(train_device="cuda")
    dry = echelon.train("--dry-run", train_device="cuda")
    assert dry.returncode == 1, dry.stdout + dry.stderr
    assert "cannot run here: there is no GPU" in dry.stdout


# ---- Weights to start from


def test_truncated_weights_are_refused_wherever_they_end(echelon, refused_job):
    whole = echelon.train_well("a", train_steps=1) / "weights"
    data = (whole / "model.safetensors").read_bytes()
    header = struct.unpack("<Q", data[:8])[0]
    folder = echelon.folder / "cut"
    shutil.copytree(whole, folder)
    for size in [0, 1, 7, 8, 9, 8 + header // 2, 8 + header - 1, 8 + header, 8 + header + 1, len(data) // 2, len(data) - 1]:
        (folder / "model.safetensors").write_bytes(data[:size])
        assert "model.safetensors" in refused_job(model_init="cut"), f"cut to {size} bytes"
    (folder / "model.safetensors").write_bytes(data + b"\0")
    assert "model.safetensors" in refused_job(model_init="cut"), "one byte too many"


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"n_layer": 1}', "\x00", '{"n_layer": 1,\n x}'])
def test_a_broken_config_beside_weights_is_refused(echelon, refused_job, text):
    (echelon.folder / "broken").mkdir()
    (echelon.folder / "broken" / "config.json").write_text(text)
    assert "config.json" in refused_job(model_init="broken")


def test_weights_that_are_not_there_are_refused(echelon, refused, refused_job):
    assert "nothing" in refused_job(model_init="nothing")
    assert "text.txt" in refused_job(model_init="text.txt")
    assert "nothing" in refused("generate", "nothing")
    assert "nothing" in refused("info", "nothing")
    (echelon.folder / "x.safetensors").write_bytes(b"not a header")
    assert "x.safetensors" in refused("info", "x.safetensors")


def test_generate_refuses_an_empty_prompt(echelon, refused):
    weights = echelon.train_well("a", train_steps=1) / "weights"
    assert "prompt" in refused("generate", weights, "--prompt", "")
    for bad in (["--tokens", "-1"], ["--temperature", "hot"], ["--seed", "x"]):
        refused("generate", weights, *bad)


# ---- Runs


def test_resuming_nothing_is_refused(echelon, refused):
    assert "nothing" in refused("train", "--resume", "nothing")
    (echelon.folder / "folder").mkdir()
    assert "folder" in refused("train", "--resume", "folder")


def test_resuming_a_finished_run_is_refused(echelon, refused):
    echelon.train_well("a", train_steps=4, train_save_every=4)
    sentence = refused("train", "--resume", "runs/a")
    assert "4 steps" in sentence and "train.steps" in sentence


def test_resuming_with_another_model_is_refused(echelon, refused):
    echelon.train_well("a", train_steps=4, train_save_every=2)
    def change(*assignments, ranks=1):
        words = [word for one in assignments for word in ("--set", one)]
        return refused("train", "--nproc", str(ranks), "--resume", "runs/a", "--set", "train.steps=8", *words)
    for ranks in (1, 2):
        sentence = change("model.width=64", "model.layers=3", ranks=ranks)
        assert "saved with model.layers = 1 and model.width = 32, and this job has 3 and 64" in sentence
        assert sentence.endswith("set model.layers=1 and model.width=32")
    assert "set train.precision=auto" in change("train.precision=fp64")
    assert "set optim.name=adamw" in change("optim.name=sgd")
    (echelon.folder / "job.toml").write_text("")
    refused("train", "job.toml", "--resume", "runs/a")


def test_a_broken_state_is_refused(echelon, refused):
    state = echelon.train_well("a", train_steps=4, train_save_every=2) / "state.safetensors"
    data = state.read_bytes()
    for size in (0, 8, 100, len(data) // 2, len(data) - 1):
        state.write_bytes(data[:size])
        assert "state.safetensors" in refused("train", "--resume", "runs/a", "--set", "train.steps=8")


def test_a_name_that_is_taken_or_no_name_is_refused(echelon, refused_job):
    (echelon.folder / "runs" / "a").mkdir(parents=True)
    assert "runs/a" in refused_job("--name", "a")
    for name in ("..", ".", "a/b", "../a", "/tmp"):
        assert name in refused_job("--name", name)


def test_a_summary_with_no_place_is_refused(refused_job):
    assert "nowhere" in refused_job("--json", "nowhere/summary.json")


# ---- The command line itself


@pytest.mark.parametrize("arguments", [[], ["fly"], ["trian"], ["train", "--fast"], ["train", "a.toml", "b.toml"],
                                       ["train", "--set"], ["generate"], ["completion"], ["completion", "fish"], ["--fast"]])
def test_a_bad_command_line_is_refused(refused, arguments):
    sentence = refused(*arguments)
    assert "--help" in sentence or "did you mean" in sentence or ".toml" in sentence
    if arguments[:1] == ["trian"]:
        assert "did you mean train?" in sentence


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(echelon, command):
    result = echelon(command, "--help")
    assert result.returncode == 0 and result.stderr == ""
    footer = result.stdout[result.stdout.index("--help"):]
    assert f"echelon {command}" in footer, "no example"
    assert max(map(len, result.stdout.splitlines())) <= 120


def test_options_are_explained_in_one_column(echelon):
    lines = echelon("train", "--help").stdout.split("Options:\n")[1].split("\n\n")[0].splitlines()
    ends = [line for line in lines if line.startswith("  --") and len(line) > 31]
    assert len(ends) > 5 and [line for line in ends if line[29] != " " or line[30] == " "] == []


@pytest.mark.parametrize("words", [["train", "--a\nb"], ["tr\nain"], ["train", "--set", "x\ny\x1b[2J=1"], ["generate", "no\nfolder"]])
def test_control_characters_that_come_back_in_a_message_are_escaped(echelon, words):
    result = echelon(*words)
    assert result.returncode == 2 and result.stderr.count("\n") == 1 and "\\n" in result.stderr, result.stderr
    assert "\x1b" not in result.stderr, result.stderr


@pytest.mark.parametrize("words", [["collectives", "--sizes", "64", "--seconds"], ["servers", "--workers", "2", "--mib"]])
def test_a_benchmark_takes_no_number_that_is_none(echelon, words):
    for value in ("nan", "inf", "-1", "0", "x"):
        result = echelon("bench", *words, value)
        assert result.returncode == 2 and f"{words[-1]}: {value} is not a number from 0.001 to" in result.stderr, result.stderr


def test_the_program_lists_its_commands(echelon):
    result = echelon("--help")
    assert result.returncode == 0
    assert all(f"\n  {command} " in result.stdout for command in COMMANDS)


def test_version_and_info_say_what_is_built_in(echelon):
    version = echelon("version").stdout
    assert version.startswith("echelon ") and "torch 2." in version
    info = echelon("info").stdout
    for word in ("echelon", "torch", "cuda", "xz", "text"):
        assert any(line.startswith(word) for line in info.splitlines()), info


def test_info_lists_the_tensors_of_a_run(echelon):
    run = echelon.train_well("a", train_steps=1)
    result = echelon("info", run / "weights")
    assert result.returncode == 0
    assert "transformer.h.0.attn.c_attn.weight" in result.stdout and "[32, 96]" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("16 tensors")


# ---- Configuration as it is printed


def test_the_printed_configuration_is_taken_back(echelon):
    changed = echelon.train_arguments("--print-config", optim_rate="0.1", model_init="a \"b\" \\c", train_seed=7)
    first = echelon(*changed)
    assert first.returncode == 0 and not (echelon.folder / "runs").exists()
    (echelon.folder / "job.toml").write_text(first.stdout)
    second = echelon("train", "job.toml", "--print-config")
    assert second.stdout == first.stdout, second.stderr
    parsed = tomllib.loads(first.stdout)
    assert parsed["optim"]["rate"] == 0.1 and parsed["train"]["seed"] == 7 and parsed["model"]["init"] == 'a "b" \\c'
    assert set(parsed) == {"model", "task", "data", "train", "optim", "parallel", "pipeline", "zero", "server", "sync", "comm", "net", "chaos"}


def test_a_file_and_the_command_line_go_together(echelon):
    (echelon.folder / "job.toml").write_text("[train]\nsteps = 3\nbatch = 2\n[optim]\nrate = 1\n")
    result = echelon("train", "job.toml", "--set", "train.steps=5", "--data", "x.txt", "--print-config")
    parsed = tomllib.loads(result.stdout)
    assert parsed["train"]["steps"] == 5 and parsed["train"]["batch"] == 2
    assert parsed["data"]["source"] == "x.txt" and parsed["optim"]["rate"] == 1.0


def test_the_names_that_scripts_rely_on_exist(echelon):
    parsed = tomllib.loads(echelon("train", "--print-config").stdout)
    names = {f"{section}.{key}" for section, keys in parsed.items() for key in keys}
    relied_on = """model.layers model.width model.heads model.vocab model.context model.tied model.init data.source
        train.steps train.batch train.seed train.device train.precision train.threads train.validate_every train.save_every
        train.graph optim.name optim.rate optim.warmup optim.decay optim.clip""".split()
    assert not set(relied_on) - names


# ---- Completion


def complete(script, *words):
    """What bash offers for the last of `words`."""
    quoted = " ".join(f"'{w}'" for w in words)
    code = f"{script}\ncompopt() {{ :; }}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}\n_echelon\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
    result = subprocess.run(["bash", "--norc", "-c", code], capture_output=True, text=True, timeout=20)
    assert result.stderr == ""
    return sorted(result.stdout.split())


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_completion_script_parses(echelon, shell):
    script = echelon("completion", shell)
    assert script.returncode == 0
    parser = shell if shutil.which(shell) else "bash"  # zsh takes the same function through its adapter
    checked = subprocess.run([parser, "-n"], input=script.stdout, text=True, capture_output=True, timeout=20)
    assert checked.returncode == 0 and checked.stderr == ""


def test_bash_completes_commands_options_and_keys(echelon):
    script = echelon("completion", "bash").stdout
    assert complete(script, "echelon", "tr") == ["train"]
    assert set(COMMANDS) <= set(complete(script, "echelon", ""))
    assert complete(script, "echelon", "train", "--res") == ["--resume"]
    assert complete(script, "echelon", "generate", "--temp") == ["--temperature"]
    assert complete(script, "echelon", "lab", "--pre") == ["--pretraining"]
    assert complete(script, "echelon", "train", "--set", "model.la") == ["model.layers="]
    assert "optim.rate=" in complete(script, "echelon", "train", "--set", "")


# ---- The summary


def test_the_summary_has_every_field_with_sane_values(echelon):
    echelon.train_well("a", "--json", "summary.json", train_validate_every=5, model_vocab=256)
    summary = json.loads((echelon.folder / "summary.json").read_text())
    width, context = 32, 32
    block = 12 * width * width + 13 * width
    assert summary["params"] == 256 * width + context * width + block + 2 * width
    assert summary["tokens_per_s"] == pytest.approx(4 * context / (summary["step_ms"] / 1e3))
    assert 0 < summary["step_ms"] < 60000
    assert 0 < summary["start_mib"] < summary["peak_mib"] < 4096
    metrics = [json.loads(line) for line in (echelon.folder / "runs" / "a" / "metrics.jsonl").read_text().splitlines()]
    assert summary["final_loss"] == [m["loss"] for m in metrics if "loss" in m][-1]
    assert summary["val_bits_per_byte"] == metrics[-1]["val_bits_per_byte"]
    assert 0 < summary["val_bits_per_byte"] < 8.5
    assert summary["device"] == "cpu" and summary["threads"] == 1


def test_the_summary_of_a_run_without_validation_says_so(echelon):
    echelon.train_well("a", "--json", "summary.json", data_source="random", model_vocab=50)
    assert json.loads((echelon.folder / "summary.json").read_text())["val_bits_per_byte"] is None


@pytest.mark.parametrize("columns", [80, None])
def test_topo_and_bench_fit_the_terminal(echelon, columns):
    """A hundred columns where nobody says how many there are."""
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    if columns:
        environment["COLUMNS"] = str(columns)
    for command in (["topo", "--nproc", "2"], ["bench", "collectives", "--world", "2", "--seconds", "0.01", "--sizes", "64,1Mi"]):
        result = subprocess.run([str(echelon.program), *command], cwd=echelon.folder, env=environment, capture_output=True,
                                text=True, timeout=120)
        assert result.returncode == 0, result.stderr
        widest = max(result.stdout.splitlines(), key=len)
        assert len(widest) <= (columns or 100), widest
        assert "1.0 MiB" in result.stdout
