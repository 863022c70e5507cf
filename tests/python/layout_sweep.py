"""Random layouts of random jobs, each trained by Echelon and by gpt2_reference in fp64: every step's loss and norm and
every final weight must agree.

    layout_sweep.py --seed 1 --layouts 60     what ./dev test runs
    layout_sweep.py --seed 1 --only 17        layout 17 of them again, and the command that it is

A layout is a function of the seed and its number. One that Echelon refuses must be refused in one sentence with exit
code 2; it is drawn again and does not count.
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
    "server.count": 0, "server.place": "colocated", "sync.adapt": False, "comm.algorithm": "auto", "comm.single_copy": "auto",
    "net.shared_memory": True, "net.tls": False, "net.connections": 2, "train.check_every": 100, "train.threads": 0,
}


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
    optimiser = Optimiser(name=draw.choice(["adamw", "adamw", "adamw", "sgd", "lars", "lamb"]),
                          rate=draw.choice([1e-3, 1e-2, 0.03]), schedule=draw.choice(["constant", "constant", "linear", "cosine"]),
                          warmup=draw.choice([0, 1, 2, 5]), final_rate=draw.choice([0, 0.1]), decay=draw.choice([0, 0.1, 0.5]),
                          clip=draw.choice([0, 0.01, 1.0, 1e9]), beta1=draw.choice([0.0, 0.9]), beta2=draw.choice([0.95, 0.999]),
                          epsilon=draw.choice([1e-8, 1e-6]), momentum=draw.choice([0.5, 0.9]), nesterov=draw.random() < 0.3)
    samples = draw.randint(5, 40)
    text = bytes(draw.choice(b"abcdefgh \n\x00\xff" if draw.random() < 0.9 else range(256))
                 for _ in range(samples * model.context + 1 + draw.randrange(model.context)))
    return Problem(model=model, optimiser=optimiser, text=text, weights_seed=number, seed=draw.randrange(1 << 31),
                   steps=draw.choice([2, 3, 3, 4]), batch=draw.choice([2, 3, 4, 5, 6, 7, 8, 9, 12]))


def draw_mesh(draw, problem):
    """(pipeline, data, tensor) of up to eight ranks; mostly one that the model can lie over."""
    while True:
        pipeline, data, tensor = draw.choice([1, 1, 2, 2, 3, 4]), draw.choice([1, 1, 2, 3]), draw.choice([1, 1, 2, 3, 4, 5])
        if not 1 < pipeline * data * tensor <= 8 or pipeline * tensor == 1:
            continue
        fits = problem.model.heads % tensor == 0 and pipeline <= problem.model.layers + 2 and data <= problem.batch
        if fits or draw.random() < 0.05:
            return pipeline, data, tensor


def draw_settings(draw, problem):
    """(ranks, settings): anything that may lie over up to eight ranks. About one in ten is refused."""
    s = {"model.recompute": draw.choice(["none", "none", "selective", "full"]), "parallel.bucket_mib": draw.choice([0, 0, 1e-3, 1e-2]),
         "train.check_every": draw.choice([0, 1, 100]), "train.threads": 1}
    family = draw.choice(["one", "data", "data", "zero", "zero", "zero", "mesh", "mesh", "mesh", "mesh", "servers"])
    if family == "servers" and problem.optimiser.name in ("lars", "lamb"):
        family = "data"
    pipeline, data, tensor = 1, 1, 1
    if family == "one":
        s["parallel.exchange_alone"] = draw.random() < 0.5
    elif family == "servers":
        servers, place = draw.choice([1, 1, 2]), draw.choice(["colocated", "separate"])
        data = draw.randint(max(1, 2 - servers) if place == "separate" else max(2, servers), max(2, min(4, problem.batch)))
        s |= {"server.count": servers, "server.place": place}
        del s["parallel.bucket_mib"]
    elif family in ("data", "zero"):
        data = draw.randint(2, max(2, min(5, problem.batch)))
        if draw.random() < 0.3:
            s |= {"parallel.shares": "speed", "parallel.shares_every": 1}
        if family == "data" and draw.random() < 0.2:
            s["sync.adapt"] = True
    else:
        pipeline, data, tensor = draw_mesh(draw, problem)
        s |= {"parallel.pipeline": pipeline, "parallel.tensor": tensor, "parallel.sequence": draw.random() < 0.7}
    most = max(1, problem.batch // data)  # micro-batches
    s["train.micro_batches"] = draw.randint(1, min(5, most)) if draw.random() < 0.97 else most + 1
    if pipeline > 1:
        s |= draw_pipeline(draw, problem, pipeline, most)
    if family == "zero" or (family == "mesh" and draw.random() < 0.5):
        s |= draw_zero(draw, alone=data == 1)
    ranks = pipeline * data * tensor + (s.get("server.count", 0) if s.get("server.place") == "separate" else 0)
    if ranks > 1 and family != "servers":
        s |= draw_links(draw, algorithm="sync.adapt" not in s)
    return ranks, s


def draw_pipeline(draw, problem, pipeline, most):
    layers = problem.model.layers + 2
    schedules = ["gpipe", "1f1b", "zero-bubble"]
    if 2 * pipeline <= layers and pipeline <= most:
        schedules += ["interleaved", "interleaved"]
    s = {"pipeline.schedule": draw.choice(schedules), "pipeline.balance": draw.choice(["time", "memory", "count"])}
    chunks = 1
    if s["pipeline.schedule"] == "interleaved":
        chunks = s["pipeline.chunks"] = draw.randint(2, layers // pipeline)
        s["train.micro_batches"] = pipeline * draw.randint(1, most // pipeline)
    if draw.random() < 0.3 and layers >= pipeline * chunks:
        cuts = sorted(draw.sample(range(1, layers), pipeline * chunks - 1))
        s["pipeline.stages"] = ",".join(str(b - a) for a, b in zip([0, *cuts], [*cuts, layers]))
    return s


def draw_zero(draw, alone):
    s = {"parallel.zero": draw.choice([1, 2, 3]), "zero.group": draw.choice([0, 1e-3, 0.25]),
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


def draw_layout(seed, number, attempt):
    draw = random.Random(f"{seed}/layout {number}/{attempt}")
    layout = Layout(number, attempt, draw.randrange(PROBLEMS), 0, {})
    problem = draw_problem(seed, layout.problem)
    layout.ranks, layout.settings = draw_settings(draw, problem)
    if problem.optimiser.schedule == "constant" and draw.random() < 0.15:
        layout.first_steps = draw.randrange(1, problem.steps)
        layout.first_ranks, layout.first_settings = draw_settings(draw, problem)
    return layout


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
        self.refused = []

    def solution(self, number):
        with self.lock:
            if number not in self.solutions:
                self.solutions[number] = train(self.problems[number])
            return self.solutions[number]

    def run(self, number):
        """Layout `number`, drawn until Echelon takes it; gives the layout. Raises Failed."""
        for attempt in range(50):
            layout = draw_layout(self.seed, number, attempt)
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
                                        stdin=subprocess.DEVNULL, timeout=SECONDS, env=os.environ | {"OMP_NUM_THREADS": "1"})
                if sentence := refusal(result):
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
    """Runs the layouts; gives the sentences of those that are wrong."""
    work = Sweep(seed, folder)
    wrong = []
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for done in concurrent.futures.as_completed([pool.submit(work.run, number) for number in numbers]):
            try:
                done.result()
            except Failed as error:
                wrong.append(str(error))
    say(f"seed {seed}: {len(numbers)} layouts, {len(wrong)} wrong; {len(work.refused)} others were refused")
    return wrong, work.refused


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--seed", default="1")
    options.add_argument("--layouts", type=int, default=60)
    options.add_argument("--only", type=int, help="this one alone")
    options.add_argument("--commands", action="store_true", help="show the first draw of each, and run nothing")
    given = options.parse_args()
    numbers = range(given.layouts) if given.only is None else [given.only]
    if given.commands:
        for number in numbers:
            layout = draw_layout(given.seed, number, 0)
            for command in commands_of(layout, draw_problem(given.seed, layout.problem)):
                print(number, shown(command))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        wrong, refused = sweep(given.seed, numbers, folder)
    for sentence in sorted(set(refused)):
        print("refused:", sentence)
    print(*wrong, sep="\n\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
