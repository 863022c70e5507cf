"""Random kills: signals to random processes of small jobs at random moments, a third of them while a state is written.

    random_kills.py --seed 1 --kills 20     what ./dev test runs
    random_kills.py --seed 1 --only 7       kill 7 of them again

Whatever is killed, the job ends within a bound and leaves no process and no temporary file behind; the last state that
was saved loads, the run goes on from it, and its metrics are those of a run that nobody disturbed. How it ends depends on
the signal:

    TERM, INT   130; the state of the step that it names is saved, and no error is told
    KILL        137, and the last error names the rank that was killed; 0 where the others go on without it
    STOP        the last error names the rank that is stopped; 0 where the others go on without it
"""

import argparse
import concurrent.futures
import json
import math
import os
import random
import re
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
LAST = STEPS - 8  # no signal after this step: it would meet a job that ends anyway
SLOWNESS = 10  # of every rank, so that a step takes longer than it takes to look for it and to strike
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
    moment: str  # early: by time, at the latest after the first step; step: after one; save: in the first save after one
    after_steps: int
    after_seconds: float

    def __str__(self):
        who = "the launcher" if self.victim < 0 else f"rank {self.victim}"
        when = {"early": f"after {self.after_seconds:.2f} s or the first step", "step": f"after step {self.after_steps}",
                "save": f"in the first save after step {self.after_steps}"}[self.moment]
        return f"kill {self.number}: SIG{self.signal} to {who} of {self.family}, {when}"


@dataclass
class Strike:
    pid: int
    early: bool  # no step was logged yet


def draw_kill(seed, number):
    draw = random.Random(f"{seed}/kill {number}")
    name = draw.choice(list(FAMILIES))
    family = FAMILIES[name]
    chosen = draw.choice(["KILL", "KILL", "KILL", "TERM", "INT", "STOP"])
    victim = draw.randrange(family.ranks) if family.ranks > 1 and (chosen == "STOP" or draw.random() < 0.8) else -1
    if victim < 0 and chosen == "STOP":
        chosen = "KILL"
    moment = "save" if number % 3 == 0 else "early" if draw.random() < 0.35 else "step"
    return Kill(number, name, chosen, victim, moment, draw.randint(1, LAST), draw.random() * 1.5)


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
        slow = "[" + ", ".join(f'"{rank}:{SLOWNESS}"' for rank in range(family.ranks)) + "]"
        words = [word for key, value in (JOB | dict(family.settings) | {"chaos.slow": slow}).items()
                 for word in ("--set", f"{key}={value}")]
        command = [str(BUILD / "echelon"), "train", "--nproc", str(family.ranks), *arguments]
        self.command = command + (words if "--resume" not in arguments else [])
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ECHELON_")}
        self.process = subprocess.Popen(self.command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
                                        env=environment | {MARK: self.mark, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder / "tmp"),
                                                           "ECHELON_CACHE": str(folder / "cache")})

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


    def writes_a_state(self):
        try:
            return any(name.startswith(".state.safetensors.") for name in os.listdir(self.folder / "runs/job"))
        except OSError:
            return False


def strike(job, kill):
    """Waits for the moment and sends the signal. None where the job was over before."""
    begin = time.monotonic()
    pid = None
    while time.monotonic() - begin < BOUND and job.process.poll() is None:
        if kill.moment == "early":
            ready = time.monotonic() - begin >= kill.after_seconds or job.steps() > 0
        else:
            ready = job.steps() >= kill.after_steps
        if not ready:
            time.sleep(0.002)
            continue
        pid = pid or job.process_of(kill.victim)
        if pid is None or (kill.moment == "save" and not job.writes_a_state()):
            continue
        try:
            early = job.steps() == 0
            os.kill(pid, SIGNALS[kill.signal])
            return Strike(pid, early)
        except ProcessLookupError:
            return None
    return None


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


def errors_in(err):
    return [line for line in err.splitlines() if line.startswith("echelon: error: ")]


def went_on(kill, strike, folder, err):
    """The job did without the rank: what is wrong with that."""
    done = len(metrics(folder))
    wrong = [] if done == STEPS else [f"it ended with 0 after {done} steps"]
    if not any(re.match(rf"echelon: error: rank {kill.victim} \(pid {strike.pid}\) ", line) for line in errors_in(err)):
        wrong.append(f"no line tells of rank {kill.victim} (pid {strike.pid})")
    return wrong


def ended_in_order(code, out, err, folder):
    """After TERM or INT: what is wrong, as sentences."""
    wrong = [] if code == 130 else [f"exit code {code}, not 130"]
    if errors_in(err):
        wrong.append(f"it was interrupted, and tells of errors: {errors_in(err)}")
    run = folder / "runs/job"
    done = len(metrics(folder)) if (run / "metrics.jsonl").exists() else 0
    said = re.search(r"interrupted after step (\d+); go on with: ", out)
    saved = saved_step(run / "state.safetensors")
    if said and not int(said[1]) == saved == done:
        wrong.append(f"interrupted after step {said[1]}, {done} steps are logged, and the state is that of step {saved}")
    if not said and done > 0:
        wrong.append(f"{done} steps were done, and it does not say after which it was interrupted")
    return wrong


def ended_well(kill, strike, family, code, out, err, folder):
    """What is wrong with how the job ended, as sentences."""
    if code is None:
        return [f"it did not end within {BOUND} s"]
    if strike is None:
        return [] if code == 0 else [f"nobody was struck, and the exit code is {code}"]
    if kill.victim < 0 and strike.early and kill.signal != "KILL" and code == -SIGNALS[kill.signal]:
        # Before it could take signals.
        return [] if out + err == "" and not (folder / "runs").exists() else ["it was killed, and had begun"]
    if kill.signal in ("TERM", "INT"):
        return ended_in_order(code, out, err, folder)
    if kill.victim < 0:  # SIGKILL
        return [] if code == -signal.SIGKILL else [f"exit code {code} of a process that was killed"]
    # Until the first step the job needs all; it is not seen from outside whether it has just begun.
    if kill.victim in family.expendable and (code == 0 or not strike.early):
        return went_on(kill, strike, folder, err) if code == 0 else [f"the others did not go on: exit code {code}"]
    end = "was killed by signal 9" if kill.signal == "KILL" else "is stopped"
    wrong = []
    if kill.signal == "KILL" and code != 137:
        wrong.append(f"exit code {code}, not 137")
    if code <= 0 or code in [128 + s for s in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)]:
        wrong.append(f"exit code {code}")
    last = (errors_in(err) or ["nothing"])[-1]
    if not re.match(rf"echelon: error: rank {kill.victim} \(pid {strike.pid}\) {end}", last):
        wrong.append(f"the last error does not say that rank {kill.victim} (pid {strike.pid}) {end}: {last}")
    return wrong


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
        self.lock = threading.Lock()  # struck
        self.struck = []  # kills that found their process

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
        struck = strike(job, kill)
        if struck:
            with self.lock:
                self.struck.append(kill)
        code, out, err = job.end(BOUND)
        wrong = ended_well(kill, struck, family, code, out, err, folder)
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
    saves = [kill for kill in work.struck if kill.moment == "save"]
    meant = [number for number in numbers if draw_kill(seed, number).moment == "save"]
    say(f"seed {seed}: {len(work.struck)} of {len(numbers)} kills found their process, {len(saves)} of {len(meant)} while a "
        f"state was written; {len(wrong)} wrong")
    if len(work.struck) < 0.8 * len(numbers) or len(saves) < 0.8 * len(meant):
        wrong.append(f"too few kills found their process: {len(work.struck)} of {len(numbers)}, {len(saves)} of {len(meant)} "
                     "while a state was written")
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
