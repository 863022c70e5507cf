"""What the suites share: the built programs, run in a folder of the test's own, and small text to train on."""

import json
import os
import random
import signal
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

import pytest

CACHE = tempfile.TemporaryDirectory(prefix="echelon_cache.")  # instead of the user's ~/.cache/echelon
os.environ["ECHELON_CACHE"] = CACHE.name

BUILD = Path(os.environ.get("ECHELON_BUILD_DIR", Path(__file__).resolve().parents[2] / "build"))
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}  # models this small only lose by more threads

# A model that takes a moment to train; what a test is about is set after these.
TINY = {
    "model.layers": 1,
    "model.width": 32,
    "model.heads": 2,
    "model.context": 32,
    "data.source": "text.txt",
    "train.steps": 12,
    "train.batch": 4,
    "train.threads": 1,
    "train.validate_every": 0,
    "optim.warmup": 2,
    "optim.schedule": "constant",  # so that shorter and longer runs take the same steps
}


class Echelon:
    """The program in a folder; runs/ appears there."""

    program = BUILD / "echelon"

    def __init__(self, folder):
        self.folder = Path(folder)

    def __call__(self, *arguments, **keywords):
        return subprocess.run([str(self.program), *map(str, arguments)], cwd=self.folder, capture_output=True,
                              text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=120, env=ENVIRONMENT,
                              **keywords)

    @staticmethod
    def train_arguments(*arguments, **settings):
        """'train' with TINY and `settings`, where model_layers stands for model.layers; None leaves a key out."""
        given = TINY | {key.replace("_", ".", 1): value for key, value in settings.items()}
        flat = []
        for key, value in given.items():
            if value is not None:
                flat += ["--set", f"{key}={str(value).lower() if isinstance(value, bool) else value}"]
        return ["train", *map(str, arguments), *flat]

    def train(self, *arguments, **settings):
        return self(*self.train_arguments(*arguments, **settings))

    def train_well(self, name, *arguments, **settings):
        """A run that must succeed; gives its folder."""
        result = self.train("--name", name, *arguments, **settings)
        assert result.returncode == 0, result.stdout + result.stderr
        return self.folder / "runs" / name

    def start(self, *arguments, **keywords):
        """The program without waiting for its end."""
        return subprocess.Popen([str(self.program), *map(str, arguments)], cwd=self.folder, text=True, errors="replace",
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env=ENVIRONMENT, **keywords)


MARK = "TEST_THAT_STARTED_THIS"  # a variable by which the processes of a test are found


def processes_with(variable, value):
    """Living processes whose environment has it, but for the servers of Python's multiprocessing, which serve later tests."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            variables = open(f"/proc/{entry}/environ", "rb").read().split(b"\0")
            state = open(f"/proc/{entry}/stat").read().rsplit(")", 1)[1].split()[0]
            command = open(f"/proc/{entry}/cmdline", "rb").read()
        except OSError:  # it has ended
            continue
        if f"{variable}={value}".encode() in variables and state != "Z" and b"from multiprocessing." not in command:
            found.append(int(entry))
    return found


@pytest.fixture(autouse=True)
def processes_end_with_their_test():
    """Whatever a test starts, in whichever way, is killed when it is over: also when it failed half-way."""
    mark = uuid.uuid4().hex
    os.environ[MARK] = ENVIRONMENT[MARK] = mark
    yield
    end = time.monotonic() + 10
    while (left := processes_with(MARK, mark)) and time.monotonic() < end:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.01)


def rank_process(job, rank):
    """The process of a rank, which is a descendant of the job's."""
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            variables = open(f"/proc/{entry}/environ").read().split("\0")
            parent = open(f"/proc/{entry}/stat").read().rsplit(")", 1)[1].split()[1]
            grand = open(f"/proc/{parent}/stat").read().rsplit(")", 1)[1].split()[1]
        except OSError:
            continue
        if f"RANK={rank}" in variables and grand == str(job.pid):
            return int(entry)
    raise AssertionError(f"rank {rank} is not there")


@pytest.fixture
def echelon(tmp_path, text):
    (tmp_path / "text.txt").write_text(text)
    return Echelon(tmp_path)


@pytest.fixture(scope="session")
def text():
    """About 12 KB of words in an order that a model can learn a little from."""
    words = "the rank sends a slice to its peer and waits until every bucket is reduced\n".split(" ")
    choose = random.Random(1)
    return " ".join(choose.choice(words) for _ in range(2400))


@pytest.fixture(scope="session")
def oracle():
    """Runs model_oracle (tests/oracle): gives its tensors by name."""

    def run(folder, batch, precision, steps, out, *options):
        from safetensors.torch import load_file

        command = [BUILD / "tests" / "model_oracle", folder, batch, precision, steps, out, *options]
        result = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120,
                                env=ENVIRONMENT)
        assert result.returncode == 0, result.stderr
        return load_file(out)

    return run


def metrics(run):
    """The lines of a run's metrics.jsonl."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
