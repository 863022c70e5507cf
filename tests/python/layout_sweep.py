"""Random layouts of random jobs, each trained by Echelon and by gpt2_reference in fp64: every step's loss and norm and
every final weight must agree.

    layout_sweep.py --seed 1 --layouts 60     what ./dev test runs
    layout_sweep.py --seed 1 --only 17        layout 17 of them again, and the command that it is

A layout is a function of the seed and its number: KINDS[number % 20] says what it is of, the optimiser turns with the
number, the rest is drawn. Only the few that are meant to be refused may be, in one sentence with exit code 2; then
another of the same kind is drawn.
"""

import argparse
import concurrent.futures
import json
import os
import random
import shlex
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from gpt2_reference import Model, Optimiser, Problem, first_weights, train

BUILD = Path(os.environ.get("ECHELON_BUILD_DIR", Path(__file__).resolve().parents[2] / "build"))
TOLERANCE = 1e-10  # of losses and weights, all of which are of the order of 1
SECONDS = 180  # that a job of three steps may take on a busy machine
PROBLEMS = 24  # different jobs, each laid out in many ways: the reference trains each once

# What a layout may set, with the default that a resumed run is set back to.
DEFAULTS = {
    "train.micro_batches": 1, "model.recompute": "none", "parallel.bucket_mib": 0, "parallel.zero": 0,
    "parallel.pipeline": 1, "parallel.tensor": 1, "parallel.sequence": True, "parallel.exchange_alone": False,
    "parallel.shares": "even", "parallel.shares_every": 20, "pipeline.schedule": "1f1b", "pipeline.chunks": 1,
    "pipeline.balance": "time", "pipeline.stages": "", "zero.offload": "none", "zero.offload_path": "",
    "zero.scatter": "auto", "zero.prefetch": 64, "zero.group": 0.25, "zero.shard": "all", "zero.piece": 4,
    "server.count": 0, "server.place": "colocated", "server.mode": "sync", "server.staleness": 3, "sync.adapt": False, "comm.algorithm": "auto", "comm.single_copy": "auto",
    "net.shared_memory": True, "net.tls": False, "net.connections": 2, "train.check_every": 100, "train.threads": 0,
}

OPTIMISERS = ["adamw", "sgd", "lars", "lamb"]
SERVER_OPTIMISERS = OPTIMISERS[:2]  # servers cut parameters, and the others look at whole ones


@dataclass(frozen=True)
class Kind:
    """What is not left to chance in a layout; None: drawn."""

    family: str  # one, data, zero, mesh, servers
    zero: int | None = None
    pipeline: bool = False
    schedule: str | None = None
    tensor: bool = False
    sequence: bool | None = None
    mode: str = "sync"
    ranks: int | None = None


KINDS = [
    Kind("one"), Kind("data"), Kind("data"), Kind("zero", zero=1), Kind("zero", zero=2), Kind("zero", zero=3),
    Kind("mesh", pipeline=True, schedule="gpipe"), Kind("mesh", pipeline=True, schedule="1f1b"),
    Kind("mesh", pipeline=True, schedule="interleaved"), Kind("mesh", pipeline=True, schedule="zero-bubble"),
    Kind("mesh", tensor=True, sequence=True), Kind("mesh", tensor=True, sequence=False), Kind("mesh", tensor=True, zero=3),
    Kind("mesh", pipeline=True, tensor=True, schedule="gpipe"), Kind("mesh", pipeline=True, tensor=True, schedule="1f1b"),
    Kind("mesh", pipeline=True, tensor=True, schedule="interleaved"),
    Kind("mesh", pipeline=True, tensor=True, schedule="zero-bubble"),
    Kind("mesh", pipeline=True, tensor=True, ranks=8), Kind("servers"), Kind("servers", mode="bounded"),
]

# How often sixty layouts have at least what each is there to try. A number that falls is a strategy that nobody tries.
LEAST = {"zero 1": 4, "zero 2": 4, "zero 3": 6, "gpipe": 6, "1f1b": 6, "interleaved": 6, "zero-bubble": 6, "tensor": 20,
         "sequence": 6, "pipeline x tensor": 15, "zero x pipeline": 4, "zero x tensor": 4, "lars or lamb x tensor": 6,
         "servers, sync": 3, "servers, bounded by 0": 3, "adamw": 12, "sgd": 12, "lars": 10, "lamb": 10, "8 ranks": 3,
         "resumed": 2}


@dataclass
class Layout:
    number: int
    attempt: int
    problem: int
    ranks: int
    settings: dict
    # The run is interrupted after this many steps, and goes on in another layout.
    first_steps: int = 0
    first_ranks: int = 0
    first_settings: dict = field(default_factory=dict)


# ---- Drawing


def draw_problem(seed, number):
    """Job `number`: sizes that divide and sizes that do not, few samples, so that epochs end within a run."""
    draw = random.Random(f"{seed}/problem {number}")
    width, heads = draw.choice([(8, 2), (16, 4), (24, 3), (12, 2), (24, 4), (20, 5), (16, 2)])
    model = Model(layers=draw.choice([1, 2, 2, 3, 4, 5]), width=width, heads=heads, context=draw.choice([4, 6, 7, 8, 12]),
                  tied=draw.random() < 0.6, dropout=draw.choice([0, 0, 0, 0.2]))
    optimiser = Optimiser(name=OPTIMISERS[number % len(OPTIMISERS)],
                          rate=draw.choice([1e-3, 1e-2, 0.03]), schedule=draw.choice(["constant", "constant", "linear", "cosine"]),
                          warmup=draw.choice([0, 1, 2, 5]), final_rate=draw.choice([0, 0.1]), decay=draw.choice([0, 0.1, 0.5]),
                          clip=draw.choice([0, 0.01, 1.0, 1e9]), beta1=draw.choice([0.0, 0.9]), beta2=draw.choice([0.95, 0.999]),
                          epsilon=draw.choice([1e-8, 1e-6]), momentum=draw.choice([0.5, 0.9]), nesterov=draw.random() < 0.3)
    samples = draw.randint(5, 40)
    text = bytes(draw.choice(b"abcdefgh \n\x00\xff" if draw.random() < 0.9 else range(256))
                 for _ in range(samples * model.context + 1 + draw.randrange(model.context)))
    return Problem(model=model, optimiser=optimiser, text=text, weights_seed=number, seed=draw.randrange(1 << 31),
                   steps=draw.choice([2, 3, 3, 4]), batch=draw.choice([2, 3, 4, 5, 6, 7, 8, 9, 12]))


def meshes(problem, kind):
    """(pipeline, data, tensor) of up to eight ranks that this model and batch can lie over."""
    model = problem.model
    # Interleaved: two chunks of layers a rank at least, and micro-batches in multiples of the ranks.
    chunks = 2 if kind.schedule == "interleaved" else 1
    return [(pipeline, data, tensor)
            for pipeline in (range(2, 5) if kind.pipeline else [1])
            for tensor in (range(2, 6) if kind.tensor else [1])
            for data in range(1, 4)
            if pipeline * data * tensor <= 8 and kind.ranks in (None, pipeline * data * tensor)
            and chunks * pipeline <= model.layers + 2 and model.heads % tensor == 0
            and problem.batch >= data * (pipeline if chunks > 1 else 1)
            and not (kind.sequence and model.context % tensor)]


def draw_settings(draw, problem, kind):
    """(ranks, settings): anything of this kind. A few in a hundred are meant to be refused."""
    s = {"model.recompute": draw.choice(["none", "none", "selective", "full"]), "parallel.bucket_mib": draw.choice([0, 0, 1e-3, 1e-2]),
         "train.check_every": draw.choice([0, 1, 100]), "train.threads": 1}
    pipeline, data, tensor = 1, 1, 1
    if kind.family == "one":
        s["parallel.exchange_alone"] = draw.random() < 0.5
    elif kind.family == "servers":
        servers, place = draw.choice([1, 1, 2]), draw.choice(["colocated", "separate"])
        data = draw.randint(max(1, 2 - servers) if place == "separate" else max(2, servers), max(2, min(4, problem.batch)))
        s |= {"server.count": servers, "server.place": place}
        if kind.mode == "bounded":  # by nothing: the same numbers as in sync
            s |= {"server.mode": "bounded", "server.staleness": 0}
        del s["parallel.bucket_mib"]
    elif kind.family in ("data", "zero"):
        data = draw.randint(2, max(2, min(5, problem.batch)))
        if draw.random() < 0.3:
            s |= {"parallel.shares": "speed", "parallel.shares_every": 1}
        if kind.family == "data" and draw.random() < 0.2:
            s["sync.adapt"] = True
    else:
        pipeline, data, tensor = draw.choice(meshes(problem, kind))
        s |= {"parallel.pipeline": pipeline, "parallel.tensor": tensor,
              "parallel.sequence": draw.random() < 0.7 if kind.sequence is None else kind.sequence}
        if draw.random() < 0.03:
            s["parallel.tensor"] = 7  # divides no model's heads: refused
    most = max(1, problem.batch // data)  # micro-batches
    s["train.micro_batches"] = draw.randint(1, min(5, most)) if draw.random() < 0.97 else most + 1
    if pipeline > 1:
        s |= draw_pipeline(draw, problem, pipeline, most, kind.schedule)
    if kind.zero or (kind.family == "mesh" and draw.random() < 0.5):
        s |= draw_zero(draw, kind.zero, alone=data == 1)
    ranks = pipeline * data * tensor + (s.get("server.count", 0) if s.get("server.place") == "separate" else 0)
    if ranks > 1 and kind.family != "servers":
        s |= draw_links(draw, algorithm="sync.adapt" not in s)
    return ranks, s


def meant_to_be_refused(problem, ranks, settings):
    s = DEFAULTS | settings
    workers = ranks - (s["server.count"] if s["server.place"] == "separate" else 0)
    data = workers // (s["parallel.pipeline"] * s["parallel.tensor"])
    return s["parallel.tensor"] == 7 or data * s["train.micro_batches"] > problem.batch


def draw_pipeline(draw, problem, pipeline, most, schedule):
    layers = problem.model.layers + 2
    if schedule is None:
        schedule = draw.choice(["gpipe", "1f1b", "zero-bubble"])
    s = {"pipeline.schedule": schedule, "pipeline.balance": draw.choice(["time", "memory", "count"])}
    chunks = 1
    if schedule == "interleaved":
        chunks = s["pipeline.chunks"] = draw.randint(2, layers // pipeline)
        s["train.micro_batches"] = pipeline * draw.randint(1, most // pipeline)
    if draw.random() < 0.3 and layers >= pipeline * chunks:
        cuts = sorted(draw.sample(range(1, layers), pipeline * chunks - 1))
        s["pipeline.stages"] = ",".join(str(b - a) for a, b in zip([0, *cuts], [*cuts, layers]))
    return s


def draw_zero(draw, stage, alone):
    s = {"parallel.zero": stage or draw.choice([1, 2, 3]), "zero.group": draw.choice([0, 1e-3, 0.25]),
         "zero.prefetch": draw.choice([0, 1e-3, 64]), "zero.shard": draw.choice(["all", "all", "host"])}
    if s["parallel.zero"] >= 2:
        s["zero.scatter"] = draw.choice(["auto", "micro_batch", "step"])
    if alone or draw.random() < 0.4:
        s |= {"zero.offload": draw.choice(["host", "disk"]), "zero.piece": draw.choice([0.02, 4])}
        if s["zero.offload"] == "disk":
            s["zero.offload_path"] = "slices"
    return s


def draw_links(draw, algorithm):
    s = {}
    if algorithm and draw.random() < 0.4:
        s["comm.algorithm"] = draw.choice(["direct", "ring", "bidirectional_ring", "recursive_doubling", "rabenseifner", "server",
                                           "shared_direct", "shared"])
    if draw.random() < 0.25:
        s |= {"net.shared_memory": False, "net.connections": draw.choice([1, 3]), "net.tls": draw.random() < 0.3}
        if s.get("comm.algorithm", "").startswith("shared"):
            del s["comm.algorithm"]
    return s


def draw_layout(seed, number, attempt, problems):
    draw = random.Random(f"{seed}/layout {number}/{attempt}")
    kind = KINDS[number % len(KINDS)]
    names = SERVER_OPTIMISERS if kind.family == "servers" else OPTIMISERS
    name = names[(number + number // len(KINDS)) % len(names)]

    def fits(problem, one):
        return one.family != "mesh" or meshes(problem, one)

    layout = Layout(number, attempt, draw.choice([n for n, problem in enumerate(problems)
                                                  if problem.optimiser.name == name and fits(problem, kind)]), 0, {})
    problem = problems[layout.problem]
    layout.ranks, layout.settings = draw_settings(draw, problem, kind)
    if problem.optimiser.schedule == "constant" and draw.random() < 0.25:
        layout.first_steps = draw.randrange(1, problem.steps)
        before = draw.choice([one for one in KINDS if fits(problem, one) and (one.family != "servers" or name in SERVER_OPTIMISERS)])
        layout.first_ranks, layout.first_settings = draw_settings(draw, problem, before)
    return layout


def strategies(layout, problem):
    """What of LEAST a layout has."""
    s = DEFAULTS | layout.settings
    zero, pipeline, tensor, servers = (s[key] for key in ("parallel.zero", "parallel.pipeline", "parallel.tensor", "server.count"))
    name = problem.optimiser.name
    has = {f"zero {zero}": zero, s["pipeline.schedule"]: pipeline > 1, "tensor": tensor > 1,
           "sequence": tensor > 1 and s["parallel.sequence"] and problem.model.context % tensor == 0,
           "pipeline x tensor": pipeline > 1 and tensor > 1, "zero x pipeline": zero and pipeline > 1,
           "zero x tensor": zero and tensor > 1, "lars or lamb x tensor": tensor > 1 and name in ("lars", "lamb"),
           "servers, sync": servers and s["server.mode"] == "sync",
           "servers, bounded by 0": servers and s["server.mode"] == "bounded", name: True, "8 ranks": layout.ranks == 8,
           "resumed": layout.first_steps}
    return [what for what, true in has.items() if true]


# ---- Running


class Failed(AssertionError):
    pass


def set_words(settings):
    return [word for key, value in settings.items()
            for word in ("--set", f"{key}={str(value).lower() if isinstance(value, bool) else value}")]


def commands_of(layout, problem):
    """The one or two command lines of a layout, in a folder with text.bin and init/."""
    model, o = problem.model, problem.optimiser
    job = {"model.init": "init", "model.dropout": model.dropout, "data.source": "text.bin", "train.precision": "fp64",
           "train.seed": problem.seed, "train.batch": problem.batch, "train.validate_every": 0, "optim.name": o.name,
           "optim.rate": o.rate, "optim.schedule": o.schedule, "optim.warmup": o.warmup, "optim.final_rate": o.final_rate,
           "optim.decay": o.decay, "optim.clip": o.clip, "optim.beta1": o.beta1, "optim.beta2": o.beta2,
           "optim.epsilon": o.epsilon, "optim.momentum": o.momentum, "optim.nesterov": o.nesterov, "optim.trust": o.trust}

    def command(ranks, steps, *words):
        return [str(BUILD / "echelon"), "train", "--nproc", str(ranks), *words, "--set", f"train.steps={steps}"]

    if not layout.first_steps:
        return [command(layout.ranks, problem.steps, "--name", "job", *set_words(job | layout.settings))]
    first = command(layout.first_ranks, layout.first_steps, "--name", "job", *set_words(job | layout.first_settings))
    then = {key: DEFAULTS[key] for key in layout.first_settings if key not in layout.settings} | layout.settings
    return [first, command(layout.ranks, problem.steps, "--resume", "runs/job", *set_words(then))]


def shown(command):
    return shlex.join([Path(command[0]).name, *command[1:]])


def refusal(result):
    """The sentence of a refused command line, None where it was not refused. Fails where that is not one sentence."""
    if result.returncode == 0:
        return None
    lines = result.stderr.strip().splitlines()
    if result.returncode != 2 or len(lines) != 1 or not lines[0].startswith("echelon: error: "):
        raise Failed(f"exit code {result.returncode}\n{result.stdout}{result.stderr}")
    return lines[0]


def write_problem(folder, problem):
    from safetensors.torch import save_file

    (folder / "text.bin").write_bytes(problem.text)
    for name in ("init", "slices"):
        (folder / name).mkdir()
    model = problem.model
    weights = first_weights(model, problem.weights_seed)
    save_file({name: value.float() for name, value in weights.items()}, folder / "init/model.safetensors", {"format": "pt"})
    (folder / "init/config.json").write_text(json.dumps({
        "model_type": "gpt2", "n_layer": model.layers, "n_embd": model.width, "n_head": model.heads, "vocab_size": model.vocab,
        "n_positions": model.context, "tie_word_embeddings": model.tied}))


def differences(folder, problem, solution):
    """What disagrees, as sentences."""
    from safetensors.torch import load_file

    lines = [json.loads(line) for line in (folder / "runs/job/metrics.jsonl").read_text().splitlines()]
    if [line["step"] for line in lines] != list(range(1, problem.steps + 1)):
        return [f"metrics.jsonl has the steps {[line['step'] for line in lines]}"]
    wrong = []
    for line, loss, norm in zip(lines, solution.losses, solution.norms, strict=True):
        if not abs(line["loss"] - loss) <= TOLERANCE:
            wrong.append(f"step {line['step']}: loss {line['loss']!r}, the reference has {loss!r}")
        if not abs(line["grad_norm"] - norm) <= TOLERANCE * max(1, norm):
            wrong.append(f"step {line['step']}: norm {line['grad_norm']!r}, the reference has {norm!r}")
    weights = load_file(folder / "runs/job/weights/model.safetensors")
    if set(weights) != set(solution.weights):
        wrong.append(f"weights have other names: {sorted(set(weights) ^ set(solution.weights))}")
    for name in sorted(set(weights) & set(solution.weights)):
        apart = float((weights[name].double() - solution.weights[name]).abs().max())
        if not apart <= TOLERANCE:
            wrong.append(f"{name} is {apart:.3g} from the reference")
    return wrong


class Sweep:
    """Draws, runs and compares; several layouts at a time."""

    def __init__(self, seed, folder):
        self.seed, self.folder = seed, Path(folder)
        self.problems = [draw_problem(seed, number) for number in range(PROBLEMS)]
        self.solutions = {}
        self.lock = threading.Lock()  # of solutions and refused
        self.refused = []  # sentences
        self.wrong = []  # texts
        self.done = []  # layouts that agree

    def solution(self, number):
        with self.lock:
            if number not in self.solutions:
                self.solutions[number] = train(self.problems[number])
            return self.solutions[number]

    def run(self, number):
        """Layout `number`, drawn until Echelon takes it; gives the layout. Raises Failed."""
        for attempt in range(50):
            layout = draw_layout(self.seed, number, attempt, self.problems)
            problem = self.problems[layout.problem]
            with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
                write_problem(Path(scratch), problem)
                if self.train(Path(scratch), layout, problem):
                    return layout
        raise Failed(f"layout {number}: fifty draws in a row were refused, the last with: {self.refused[-1]}")

    def train(self, folder, layout, problem):
        """False where Echelon refuses the layout."""
        commands = commands_of(layout, problem)
        try:
            for command in commands:
                result = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace",
                                        stdin=subprocess.DEVNULL, timeout=SECONDS,
                                        env=os.environ | {"OMP_NUM_THREADS": "1", "ECHELON_CACHE": str(folder / "cache")})
                if sentence := refusal(result):
                    jobs = [(layout.ranks, layout.settings), (layout.first_ranks, layout.first_settings)]
                    if not any(meant_to_be_refused(problem, *job) for job in jobs):
                        raise Failed(f"it should run, and was refused: {sentence}")
                    with self.lock:
                        self.refused.append(sentence)
                    return False
            wrong = differences(folder, problem, self.solution(layout.problem))
        except subprocess.TimeoutExpired:
            wrong = [f"it did not end within {SECONDS} s"]
        except Failed as error:
            wrong = [str(error)]
        if wrong:
            raise Failed("\n".join([f"layout {layout.number} is wrong:", *map(shown, commands), *wrong,
                                    f"again: python {Path(__file__).name} --seed {self.seed} --only {layout.number}"]))
        return True


def sweep(seed, numbers, folder, say=print):
    """Runs the layouts."""
    work = Sweep(seed, folder)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for done in concurrent.futures.as_completed([pool.submit(work.run, number) for number in numbers]):
            try:
                work.done.append(done.result())
            except Failed as error:
                work.wrong.append(str(error))
    say(f"seed {seed}: {len(numbers)} layouts, {len(work.wrong)} wrong; {len(work.refused)} others were refused")
    return work


def missed(work):
    """What a sweep of sixty layouts or more did not try as often as it is meant to, as sentences."""
    drawn = len(work.done) + len(work.wrong) + len(work.refused)
    said = [f"{len(work.refused)} of {drawn} layouts were refused:\n  " + "\n  ".join(sorted(set(work.refused)))]
    said = said if len(work.refused) > drawn / 10 else []
    tried = Counter(what for layout in work.done for what in strategies(layout, work.problems[layout.problem]))
    return said + [f"{what}: {tried[what]} layouts, where {least} are meant" for what, least in LEAST.items() if tried[what] < least]


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--seed", default="1")
    options.add_argument("--layouts", type=int, default=60)
    options.add_argument("--only", type=int, help="this one alone")
    options.add_argument("--commands", action="store_true", help="show the first draw of each, and run nothing")
    given = options.parse_args()
    numbers = range(given.layouts) if given.only is None else [given.only]
    if given.commands:
        problems = [draw_problem(given.seed, number) for number in range(PROBLEMS)]
        tried = Counter()
        for number in numbers:
            layout = draw_layout(given.seed, number, 0, problems)
            tried.update(strategies(layout, problems[layout.problem]))
            for command in commands_of(layout, problems[layout.problem]):
                print(number, shown(command))
        print(*(f"{what}: {tried[what]}" for what in LEAST), sep=", ")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        work = sweep(given.seed, numbers, folder)
    for sentence in sorted(set(work.refused)):
        print("refused:", sentence)
    print(*work.wrong, sep="\n\n")
    return 1 if work.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
