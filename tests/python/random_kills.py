"""Random kills: signals to random processes of small jobs at random moments, many of them while a state is written.

    random_kills.py --seed 1 --kills 20     what ./dev test runs
    random_kills.py --seed 1 --only 7       kill 7 of them again

Whatever is killed, the job ends within a bound and leaves no process and no temporary file behind; the last state that
was saved loads, the run goes on from it, and its metrics are those of a run that nobody disturbed.
"""

import argparse
import concurrent.futures
import json
import math
import os
import random
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

BUILD = Path(os.environ.get("ECHELON_BUILD_DIR", Path(__file__).resolve().parents[2] / "build"))
STEPS, SAVE_EVERY = 48, 3
BOUND = 120  # seconds from the signal to the end of the job, on a busy machine; the waits below end sooner
MARK = "ECHELON_TEST_KILL"  # a variable by which the processes of a job are found

JOB = {"model.layers": 2, "model.width": 16, "model.heads": 2, "model.context": 16, "data.source": "text.txt", "train.batch": 6,
       "train.steps": STEPS, "train.save_every": SAVE_EVERY, "train.precision": "fp64", "train.validate_every": 0,
       "train.threads": 1, "train.check_every": 10, "optim.warmup": 4, "optim.schedule": "constant", "net.connect_timeout": 30,
       "comm.timeout": 15, "server.patience": 8}


@dataclass(frozen=True)
class Family:
    ranks: int
    settings: tuple
    expendable: tuple = ()  # ranks that the others go on without
    exact: bool = True  # the same metrics every time


FAMILIES = {
    "one process": Family(1, ()),
    "data parallel": Family(3, ()),
    "ZeRO-3": Family(3, (("parallel.zero", 3),)),
    "pipeline": Family(2, (("parallel.pipeline", 2), ("train.micro_batches", 3), ("pipeline.stages", "2,2"))),
    "servers, sync": Family(3, (("server.count", 1),)),
    "servers, bounded": Family(3, (("server.count", 1), ("server.mode", "bounded")), (1, 2), False),
    "servers, async": Family(3, (("server.count", 1), ("server.mode", "async")), (1, 2), False),
    "servers apart, async": Family(4, (("server.count", 1), ("server.mode", "async"), ("server.place", "separate")), (1, 2), False),
}
SIGNALS = {"KILL": signal.SIGKILL, "TERM": signal.SIGTERM, "INT": signal.SIGINT, "STOP": signal.SIGSTOP}


@dataclass
class Kill:
    number: int
    family: str
    signal: str
    victim: int  # a rank; -1: the process that was started
    after_steps: int  # -1: by time, in the first moments of the job
    after_seconds: float

    def __str__(self):
        who = "the launcher" if self.victim < 0 else f"rank {self.victim}"
        when = f"after step {self.after_steps}" if self.after_steps >= 0 else f"after {self.after_seconds:.2f} s"
        return f"kill {self.number}: SIG{self.signal} to {who} of {self.family}, {when}"


def draw_kill(seed, number):
    draw = random.Random(f"{seed}/kill {number}")
    name = draw.choice(list(FAMILIES))
    family = FAMILIES[name]
    chosen = draw.choice(["KILL", "KILL", "KILL", "TERM", "INT", "STOP"])
    victim = draw.randrange(family.ranks) if family.ranks > 1 and (chosen == "STOP" or draw.random() < 0.8) else -1
    if victim < 0 and chosen == "STOP":
        chosen = "KILL"
    early = draw.random() < 0.25
    return Kill(number, name, chosen, victim, -1 if early else draw.randrange(STEPS), draw.random() * 1.5)


# ---- Processes


def marked(mark):
    """{pid: rank or -1} of the processes that carry a mark."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            variables = open(f"/proc/{entry}/environ", "rb").read().split(b"\0")
            state = open(f"/proc/{entry}/stat").read().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if f"{MARK}={mark}".encode() in variables and state != "Z":
            ranks = [int(v[5:]) for v in variables if v.startswith(b"RANK=")]
            found[int(entry)] = ranks[0] if ranks else -1
    return found


class Job:
    """A job in a folder of its own; everything that it starts carries a mark."""

    def __init__(self, folder, family, *arguments):
        self.folder, self.mark = folder, uuid.uuid4().hex
        (folder / "tmp").mkdir(exist_ok=True)
        words = [word for key, value in (JOB | dict(family.settings)).items() for word in ("--set", f"{key}={value}")]
        command = [str(BUILD / "echelon"), "train", "--nproc", str(family.ranks), *arguments]
        self.command = command + (words if "--resume" not in arguments else [])
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ECHELON_")}
        self.process = subprocess.Popen(self.command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
                                        env=environment | {MARK: self.mark, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder / "tmp")})

    def steps(self):
        try:
            return (self.folder / "runs/job/metrics.jsonl").read_text().count("\n")
        except OSError:
            return 0

    def process_of(self, rank):
        """The pid of a rank; None where it is not there yet or not any more."""
        if rank < 0:
            return self.process.pid
        return next((pid for pid, one in marked(self.mark).items() if one == rank), None)

    def end(self, seconds):
        """(exit code, stdout, stderr); the code is None where it did not end in time, and then everything is killed."""
        try:
            out, err = self.process.communicate(timeout=seconds)
            return self.process.returncode, out, err
        except subprocess.TimeoutExpired:
            for pid in marked(self.mark):
                os.kill(pid, signal.SIGKILL)
            out, err = self.process.communicate()
            return None, out, err

    def left_over(self):
        """Processes of the job that are still there a moment after its end."""
        for _ in range(100):
            left = marked(self.mark)
            if not left:
                return []
            time.sleep(0.05)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        return sorted(left)


def strike(job, kill):
    """Waits for the moment and sends the signal. False where the job was over before."""
    moment = time.monotonic() + (kill.after_seconds if kill.after_steps < 0 else 0)
    deadline = time.monotonic() + BOUND
    while time.monotonic() < deadline:
        if job.process.poll() is not None:
            return False
        if time.monotonic() >= moment and job.steps() >= kill.after_steps:
            pid = job.process_of(kill.victim)
            if pid is not None:
                try:
                    os.kill(pid, SIGNALS[kill.signal])
                    return True
                except ProcessLookupError:
                    pass
        time.sleep(0.002)
    return False


# ---- What must hold afterwards


def metrics(folder):
    return [json.loads(line) for line in (folder / "runs/job/metrics.jsonl").read_text().splitlines()]


def saved_step(state):
    """The step of a state, by its header; None where there is none."""
    if not state.exists():
        return None
    with state.open("rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        return int(json.loads(file.read(length))["__metadata__"]["step"])


def ended_well(kill, family, code, err):
    """What is wrong with how the job ended, as sentences."""
    if code is None:
        return [f"it did not end within {BOUND} s"]
    if code in (-signal.SIGKILL,) and kill.victim < 0:
        return []
    crashes = [128 + s for s in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)]
    if code < 0 or code in crashes:
        return [f"exit code {code}"]
    spared = kill.victim in family.expendable
    if kill.signal == "KILL" and spared and code != 0:
        return [f"the others did not go on: exit code {code}"]
    if kill.signal == "KILL" and not spared and code not in (0, 137):
        return [f"exit code {code}, not 137"]
    errors = [line for line in err.splitlines() if line.startswith("echelon: error: ")]
    if kill.signal == "KILL" and code == 137 and f"rank {kill.victim} " not in errors[-1]:
        return [f"the last error does not name rank {kill.victim}: {errors[-1]}"]
    return []


def same_metrics(family, got, expected):
    if [line["step"] for line in got] != list(range(1, STEPS + 1)):
        return [f"the steps are {[line['step'] for line in got]}"]
    if not family.exact:
        return [] if all(math.isfinite(line["loss"]) for line in got) else ["a loss is not finite"]
    return [f"step {a['step']}: {key} {a[key]!r}, undisturbed {b[key]!r}" for a, b in zip(got, expected, strict=True)
            for key in ("loss", "grad_norm", "rate") if not abs(a[key] - b[key]) <= 1e-10 * max(1, abs(b[key]))]


class Kills:
    def __init__(self, seed, folder):
        self.seed, self.folder = seed, Path(folder)
        self.undisturbed = {}
        self.locks = {name: threading.Lock() for name in FAMILIES}
        self.struck = 0

    def place(self):
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        draw = random.Random(1)
        (folder / "text.txt").write_text(" ".join(draw.choice(["rank", "slice", "bucket", "waits", "sends"]) for _ in range(800)))
        return folder

    def reference(self, name):
        """The metrics of a run that nobody disturbs."""
        with self.locks[name]:
            if name not in self.undisturbed:
                folder = self.place()
                code, out, err = Job(folder, FAMILIES[name], "--name", "job").end(BOUND)
                assert code == 0, f"{name}, undisturbed: {out}{err}"
                self.undisturbed[name] = metrics(folder)
            return self.undisturbed[name]

    def run(self, number):
        """What went wrong with a kill, as one text; empty: nothing."""
        kill = draw_kill(self.seed, number)
        family = FAMILIES[kill.family]
        expected = self.reference(kill.family)
        folder = self.place()
        job = Job(folder, family, "--name", "job")
        self.struck += strike(job, kill)
        code, out, err = job.end(BOUND)
        wrong = ended_well(kill, family, code, err)
        if left := job.left_over():
            wrong.append(f"the processes {left} were left behind")
        before = f"{out}{err}"
        wrong += self.go_on(folder, family, code, expected)
        if left := sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_socket() or p.parent.name == "tmp"):
            wrong.append(f"left behind: {left}")
        if not wrong:
            return ""
        return "\n".join([str(kill), shlex.join(job.command), *wrong, before[-4000:],
                          f"again: python {Path(__file__).name} --seed {self.seed} --only {number}"])

    def go_on(self, folder, family, code, expected):
        """Resumes where there is a state; what is wrong with that, as sentences."""
        run = folder / "runs/job"
        metrics_done = 0
        if (run / "metrics.jsonl").exists():
            metrics_done = (run / "metrics.jsonl").read_text().count("\n")
        saved = saved_step(run / "state.safetensors")
        # A step's line is written before its state is, and the next line after it.
        must = (metrics_done - 1) // SAVE_EVERY * SAVE_EVERY if metrics_done else 0
        if (saved or 0) < must:
            return [f"{metrics_done} steps were done and the state is that of step {saved}"]
        if saved is None:
            return []
        if saved < STEPS:
            code, out, err = Job(folder, family, "--resume", "runs/job").end(BOUND)
            if code != 0:
                return [f"going on from step {saved}: exit code {code}\n{out}{err}"]
        elif code != 0:
            return []  # killed between the last state and the end: there is no step to go on with
        wrong = same_metrics(family, metrics(folder), expected)
        aside = sorted(str(p.relative_to(run)) for p in run.rglob(".*"))
        return wrong + ([f"temporary files are left in the run: {aside}"] if aside and saved < STEPS else [])


def kills(seed, numbers, folder, say=print):
    work = Kills(seed, folder)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        wrong = [text for text in pool.map(work.run, numbers) if text]
    say(f"seed {seed}: {len(numbers)} kills, {work.struck} of which found their process; {len(wrong)} wrong")
    return wrong


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--seed", default="1")
    options.add_argument("--kills", type=int, default=20)
    options.add_argument("--only", type=int, help="this one alone")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wrong = kills(given.seed, range(given.kills) if given.only is None else [given.only], folder)
    print(*wrong, sep="\n\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
