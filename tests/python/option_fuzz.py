"""Random command lines: every subcommand, every option of `echelon info --options`, values and files of garbage.

    option_fuzz.py --seed 1 --runs 200     what ./dev test runs
    option_fuzz.py --seed 1 --only 17      run 17 of them again

Whatever is given, the program ends in time, by itself, with 0 (done), 1 (failed), 2 (the user's mistake) or 130
(interrupted), and says in one sentence what is wrong: no signal, no text of a library's exception, no stack.
"""

import argparse
import concurrent.futures
import json
import os
import random
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

BUILD = Path(os.environ.get("ECHELON_BUILD_DIR", Path(__file__).resolve().parents[2] / "build"))
SECONDS = 120  # that a run may take on a busy machine
CODES = {0, 1, 2, 130}
FAILED_LINES = 8  # that a job which fails may write to standard error: a few of each of its three ranks, and the launcher's

# What libraries, the C++ runtime and torch say of their own exceptions.
LEAKS = re.compile(r"\[json\.exception|terminate called|what\(\)|std::|bad_alloc|basic_string|vector::|c10::|c10 |frame #\d|"
                   r"Exception raised|CLI::|toml::|filesystem error|Segmentation|core dumped|assert|stoi|stol|stoul|stod|"
                   r"invalid_argument|out_of_range|nlohmann|Traceback|killed by signal")

TINY = ["model.layers=1", "model.width=8", "model.heads=2", "model.context=8", "train.batch=4", "train.steps=2",
        "data.source=text.txt", "train.validate_every=0", "train.threads=1", "optim.warmup=0", "net.connect_timeout=20",
        "comm.timeout=20"]

NUMBERS = ["0", "-0", "1", "2", "3", "-1", "0.5", "1e-7", "1e9", "1e18", "1e19", "1e308", "1e400", "-1e308", "nan", "inf", "-inf",
           "2147483648", "4294967296", "9223372036854775807", "9223372036854775808", "99999999999999999999", "0x10", "1_000",
           "1__0", "+3", "1.", ".5", "1e", "1,5", " 2 ", "2 3", "007", "1e-400"]
WORDS = ["", " ", "x", "true", "false", "none", "auto", "all", "cpu", "cuda", "fp64", "bf16", "ring", "native", "mpi", "nccl",
         "1979-05-27", "07:32:00", "[1]", "[]", "{}", "[\"a\"]", "[\"1:3.0\"]", "\"", "'", "\"\"", "\"a\nb\"", "a=b", "--help", "-", "--",
         "/", "/dev/null", "/dev/zero/x", "/proc/self/mem", "no/such/file", "text.txt", ".", "..", "~", "$HOME", "%s%s%n", "\x1b[2J",
         "\t", "ä", "日本", "\u202e", "null", "127.0.0.1", "::1", "127.0.0.1:0", "lo", "1:2:3", "4,3,3", "1,1,1", "x" * 300, "9" * 400]


# ---- What there is to choose from


class Program:
    """The options as the program itself lists them."""

    def __init__(self, path):
        self.path = str(path)
        page = subprocess.run([self.path, "info", "--options"], capture_output=True, text=True, timeout=SECONDS, check=True)
        self.options = []  # (key, default, words that are allowed)
        for line in page.stdout.splitlines():
            cells = [cell.strip() for cell in line.replace("\\|", "¦").split("|")[1:-1]]
            if len(cells) == 4 and cells[0].startswith("`"):
                allowed = [] if "at least" in cells[2] or "more than" in cells[2] else [w.strip() for w in cells[2].split(",") if w]
                self.options.append((cells[0].strip("`"), cells[1].strip("`").strip('"'), allowed))
        assert len(self.options) > 80, page.stdout


def draw_value(draw, default, allowed):
    kind = draw.random()
    if allowed and kind < 0.4:
        return draw.choice(allowed)
    if kind < 0.25:
        return default
    if kind < 0.7:
        return draw.choice(NUMBERS)
    return draw.choice(WORDS)


def assignment(draw, program):
    key, default, allowed = draw.choice(program.options)
    if draw.random() < 0.03:
        key = draw.choice([key.replace(".", ""), key + "x", key.upper(), "." + key, key.split(".")[0], key.replace(".", "..")])
    value = draw_value(draw, default, allowed)
    return draw.choice([f"{key}={value}"] * 20 + [key, f"{key} = {value}", f"={value}", f"{key}==", f'{key}="{value}"'])


# ---- Files of garbage


def mutated(draw, data):
    data = bytearray(data)
    for _ in range(draw.choice([1, 1, 2, 5])):
        if not data:
            break
        at = draw.randrange(len(data))
        match draw.randrange(5):
            case 0:
                data[at] = draw.randrange(256)
            case 1:
                del data[at:at + draw.choice([1, 4, 100])]
            case 2:
                data[at:at] = bytes(draw.randrange(256) for _ in range(draw.choice([1, 8])))
            case 3:
                data[at:at] = draw.choice(NUMBERS + WORDS).encode()
            case 4:
                del data[at:]
    return bytes(data)


def garbage_json(draw, text):
    """A JSON file with one value in it replaced by one of another kind."""
    value = json.loads(text)
    node = value
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            break
        key = draw.choice(keys)
        if isinstance(node[key], (dict, list)) and node[key] and draw.random() < 0.8:
            node = node[key]
            continue
        if draw.random() < 0.3 and isinstance(node, dict):
            del node[key]
        else:
            node[key] = draw.choice([-1, 0, 1, 2.5, 1e300, 2 ** 64, -2 ** 63, "", "x", None, True, [], {}, [[]], "ring", 10 ** 40])
        break
    return json.dumps(value).encode()


def garbage_safetensors(draw, data):
    """A safetensors file whose header was changed, with the length that fits, or that was cut or changed anywhere."""
    if draw.random() < 0.3:
        return mutated(draw, data)
    length = struct.unpack("<Q", data[:8])[0]
    header = garbage_json(draw, data[8:8 + length]) if draw.random() < 0.7 else mutated(draw, data[8:8 + length])
    said = len(header) if draw.random() < 0.9 else draw.choice([0, 1, len(header) + 8, 1 << 40, (1 << 64) - 1])
    return struct.pack("<Q", said) + header + data[8 + length:]


def spoil(draw, folder):
    """Changes one file of the folder's run, weights or plan; gives the command line that reads it."""
    what = draw.choice(["plan", "weights", "config.json", "state", "config.toml", "metrics", "job.toml", "job.toml"])
    if what == "plan":
        file = folder / "runs/ranks/plan.json"
        words = ["train", "--nproc", "2", "--plan", "runs/ranks/plan.json", "--name", "new", *set_words(TINY)]
    elif what in ("weights", "config.json"):
        file = folder / "runs/job/weights" / ("model.safetensors" if what == "weights" else what)
        words = draw.choice([["generate", "runs/job/weights", "--tokens", "3"], ["info", "runs/job/weights"],
                             ["train", "--name", "new", "--set", "model.init=runs/job/weights", *set_words(TINY[4:])]])
    elif what == "job.toml":
        file = folder / "job.toml"
        words = ["train", "job.toml", draw.choice(["--print-config", "--dry-run", "--name=new"])]
    else:
        file = folder / "runs/job" / {"state": "state.safetensors", "metrics": "metrics.jsonl"}.get(what, what)
        words = draw.choice([["train", "--resume", "runs/job", "--set", "train.steps=4"], ["export", "runs/job", "-o", "out"]])
    data = file.read_bytes()
    if file.suffix == ".safetensors":
        file.write_bytes(garbage_safetensors(draw, data))
    elif file.suffix == ".json" and draw.random() < 0.7:
        file.write_bytes(garbage_json(draw, data))
    else:
        file.write_bytes(mutated(draw, data))
    return words


# ---- Command lines


def set_words(settings):
    return [word for setting in settings for word in ("--set", setting)]


def draw_train(draw, program):
    words = ["train"]
    settings = [assignment(draw, program) for _ in range(draw.choice([0, 1, 1, 2, 3, 6]))]
    how = draw.random()
    if how < 0.3:
        words.append("--print-config")
    elif how < 0.7:
        words.append("--dry-run")
    # A job that runs is tiny, and what was drawn comes before: it does not make it large or long.
    small = TINY if how < 0.7 else [*TINY, "train.steps=2", "model.layers=1", "model.width=8", "model.context=8", "model.vocab=256",
                                    "train.batch=4", "train.micro_batches=1", "net.connect_timeout=20", "comm.timeout=20",
                                    "server.patience=20", "chaos.slow=[]"]
    words += set_words(TINY[:draw.randrange(len(TINY))] + settings if how < 0.7 else settings + small)
    if draw.random() < 0.1:
        words.append("--allow-other-data")
    for option in ("--nproc", "--name", "--resume", "--json", "--plan", "--join", "--trace", "--data", "--progress"):
        if draw.random() < 0.12:
            value = draw.choice(NUMBERS + WORDS)
            if option == "--nproc" and how >= 0.7:
                value = draw.choice(["0", "1", "2", "3", "-1", "x", "1.5"])
            if option == "--data" and value in (".", "..", "/"):
                value = "text.txt"  # no walks over the whole disk
            if option == "--progress" and draw.random() < 0.7:
                value = draw.choice(["auto", "plain", "none"])
            if option == "--trace" and draw.random() < 0.7:
                value = draw.choice(["buckets", "sync", "pipeline"])
            words += [option, value]
    return words


def draw_other(draw, program):
    value = draw.choice(NUMBERS + WORDS)
    few = draw.choice(["0", "1", "2", "3", "-1", "x", "1.5", "99999999999999999999"])
    sets = set_words([assignment(draw, program)]) if draw.random() < 0.5 else []
    return draw.choice([
        ["generate", draw.choice(["runs/job/weights", value]), draw.choice(["--tokens", "--temperature", "--top", "--seed", "--prompt"]),
         draw.choice([value, few]), *draw.choice([[], ["--tokens", "3"]])],
        ["info", *draw.choice([[], ["--options"], [value], ["runs/job"], ["runs/job/state.safetensors"]])],
        ["version", *draw.choice([[], [value]])],
        ["completion", draw.choice(["bash", "zsh", value])],
        ["topo", "--nproc", draw.choice(["1", "2", few]), draw.choice(["--mesh", "--sizes", "--json"]),
         draw.choice([value, "2x1x1", "1x2x1", "64", "x2", "0x0x0", "1x1x99999999999"]),
         *draw.choice([[], ["--measure"], ["--measure", value]]), *sets],
        ["export", draw.choice(["runs/job", "runs/ranks", "runs/job/state.safetensors", value]),
         *draw.choice([[], ["-o", draw.choice(["out", "runs/job/weights", "no/such/file", "text.txt", "/dev/null", "/dev/null/x",
                                               "/proc/self/x", "", "x" * 300, "-", "a\nb"])], ["-o"], ["--out", "out"]])],
        ["bench", draw.choice(["collectives", "servers", value])],
        ["bench", "collectives", "--nproc", draw.choice(["2", few]), "--sizes", draw.choice(["64", "1Ki,7", value]), "--seconds",
         draw.choice(["0.01", "0.01", "0", "nan"]), draw.choice(["--op", "--type", "--algorithm", "--buffers"]),
         draw.choice([value, "all_gather", "bf16", "ring", "registered"]), *sets],
        ["bench", "servers", "--repeat", "2", "--mib", draw.choice(["0.01", "0", "-1", "nan"]), "--workers",
         draw.choice(["2", few]), "--extra", draw.choice(["0", "1", few]), *sets],
        ["verify", draw.choice(["--inject", "--world", "--json", "--html"]), value, "--list-injections"],
        ["verify", draw.choice(["--inject", "--world"]), draw.choice(["-1", "0", "9", "x", "lost-gradien", "1.5", "99999999999999999999"])],
        ["launch", draw.choice(["--nproc", "--nodes", "--node-rank", "--rendezvous", "--log-dir"]), draw.choice([few, "lo:x", "h:0"]),
         "--", draw.choice(["true", "false", "no-such-program", "/dev/null"])],
        ["launch", "--nproc", "2", "--rendezvous", value, "--", "true"],
        # A lab that begins runs for minutes: this folder is there, so it is refused.
        ["lab", draw.choice(["--model", "--data", "--steps", "--pretraining", "--shape", "--json", "--set"]),
         draw.choice([value, few, "runs/job/weights", "small"]), "--out", draw.choice([".", "runs", "text.txt"]), "--no-sweep", *sets],
        [value, value],
        [draw.choice(["train", "lab", "launch", "bench", "topo", "verify", "export", "generate", "info"]), f"--{value}", value],
        ["--help"], ["train", "--help"], [], ["--version"]])


def draw_command(seed, number, program, folder):
    draw = random.Random(f"{seed}/run {number}")
    kind = draw.random()
    if kind < 0.2:
        return spoil(draw, folder)
    return draw_train(draw, program) if kind < 0.75 else draw_other(draw, program)


# ---- Running


def faults(words, result):
    """What is wrong with how a run ended, as sentences."""
    wrong = []
    text = result.stdout + result.stderr
    codes = CODES | ({126, 127} if words[:1] == ["launch"] else set())
    if result.returncode not in codes:
        wrong.append(f"exit code {result.returncode}")
    # What a user wrote comes back in messages; that is no leak.
    given = "\n".join(words)
    wrong += [f"{match[0]!r} is not for a user to read" for match in LEAKS.finditer(text) if match[0] not in given]
    errors = [line for line in result.stderr.splitlines() if line.startswith("echelon: error: ")]
    if result.returncode == 2 and (len(errors) != 1 or len(result.stderr.splitlines()) - len(errors) > 0):
        others = [line for line in result.stderr.splitlines() if not line.startswith(("echelon: error: ", "echelon: warning: "))]
        if len(errors) != 1 or others:
            wrong.append(f"a user's mistake is to be said in one sentence, not in {len(result.stderr.splitlines())} lines")
    if any(len(line) > 2000 for line in errors):
        wrong.append("the sentence is more than 2000 characters long")
    if result.returncode == 0 and errors:
        wrong.append("it reports an error and success")
    if result.returncode == 1 and len(result.stderr.splitlines()) > FAILED_LINES:
        wrong.append(f"a failure is to be said in a few lines, not in {len(result.stderr.splitlines())}")
    if result.returncode == 1 and not errors and "--dry-run" not in words and words[:1] != ["launch"]:
        wrong.append("it failed and does not say why")
    return wrong


class Fuzz:
    def __init__(self, seed, folder):
        self.seed, self.folder = seed, Path(folder)
        self.program = Program(BUILD / "echelon")
        self.template = self.folder / "template"
        self.make_template()

    def call(self, words, folder):
        # A process group of its own, so that whatever hangs ends with it.
        with subprocess.Popen([self.program.path, *words], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
                              env={k: v for k, v in os.environ.items() if not k.startswith("ECHELON_")}
                              | {"OMP_NUM_THREADS": "1", "ECHELON_CACHE": str(self.folder / "cache")}) as run:
            try:
                out, err = run.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                run.kill()  # the launcher's ranks end with it
                out, err = run.communicate()
                return subprocess.CompletedProcess(words, None, out, err)
        return subprocess.CompletedProcess(words, run.returncode, out, err)

    def make_template(self):
        """A folder with a text, a configuration, a finished run of one rank and one of two."""
        self.template.mkdir()
        (self.template / "text.txt").write_text("a rank sends a slice to its peer\n" * 20)
        (self.template / "job.toml").write_text(
            "\n".join(f"{setting.split('=')[0]} = {json.dumps(v) if (v := setting.split('=')[1])[0].isalpha() else v}" for setting in TINY))
        for name, ranks in (("job", "1"), ("ranks", "2")):
            result = self.call(["train", "--name", name, "--nproc", ranks, *set_words(TINY)], self.template)
            assert result.returncode == 0, result.stdout + result.stderr

    def run(self, number):
        """The faults of run `number`, as one text; empty: none."""
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            place = Path(scratch) / "here"
            shutil.copytree(self.template, place)
            words = draw_command(self.seed, number, self.program, place)
            try:
                result = self.call(words, place)
            except ValueError:  # a NUL in a word, which no process can be given
                return ""
            wrong = [f"it did not end within {SECONDS} s"] if result.returncode is None else faults(words, result)
        if not wrong:
            return ""
        return "\n".join([f"run {number}: {shlex.join(['echelon', *words])}", *wrong, result.stdout[-1500:], result.stderr[-3000:],
                          f"again: python {Path(__file__).name} --seed {self.seed} --only {number}"])


def fuzz(seed, numbers, folder, say=print):
    work = Fuzz(seed, folder)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        wrong = [text for text in pool.map(work.run, numbers) if text]
    say(f"seed {seed}: {len(numbers)} runs, {len(wrong)} wrong")
    return wrong


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--seed", default="1")
    options.add_argument("--runs", type=int, default=200)
    options.add_argument("--only", type=int, help="this one alone")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wrong = fuzz(given.seed, range(given.runs) if given.only is None else [given.only], folder)
    print(*wrong, sep="\n\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
