"""Jobs over all strategies whose numbers must not change when the code is restructured.

    recorded_jobs.py record FOLDER [--program build/echelon]    writes metrics.jsonl and ledger.json of every job
    recorded_jobs.py compare FOLDER OTHER                        names every file that differs in a byte
    recorded_jobs.py golden                                      writes recorded_jobs.json anew

Two builds on one machine must give the same bytes: record with each, then compare. Across machines the ledger is the
same to the byte, and fp64 losses to rounding: recorded_jobs_test.py holds the jobs of GOLDEN to recorded_jobs.json.
Everything that Echelon would choose by measuring (algorithms, buckets, pipeline stages) is fixed here.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

BUILD = Path(os.environ.get("ECHELON_BUILD_DIR", Path(__file__).resolve().parents[2] / "build"))
GOLDEN_FILE = Path(__file__).with_suffix(".json")
STEPS = 4
COMMON = {"model.layers": 4, "model.width": 24, "model.heads": 4, "model.context": 12, "data.source": "text.bin",
          "train.steps": STEPS, "train.batch": 12, "train.validate_every": 2, "train.validate_samples": 5,
          "train.check_every": 2, "train.threads": 1, "optim.warmup": 2, "parallel.bucket_mib": 0.01, "zero.group": 0.01,
          "zero.prefetch": 0.05, "comm.algorithm": "ring"}


@dataclass(frozen=True)
class Job:
    ranks: int
    settings: dict = field(default_factory=dict)
    resumed_ranks: int = 0  # 0: not resumed
    resumed_settings: dict = field(default_factory=dict)


def mesh(ranks, **settings):
    """A job on a mesh; double underscores stand for dots, and stages are even."""
    named = {key.replace("__", "."): value for key, value in settings.items()}
    stages = named.get("parallel.pipeline", 1) * named.get("pipeline.chunks", 1)
    if stages > 1:
        named["pipeline.stages"] = {2: "3,3", 3: "2,2,2", 4: "2,1,1,2"}[stages]
    return Job(ranks, {"train.micro_batches": 2 if ranks < 4 else 3} | named)


JOBS = {
    "one": Job(1),
    "one-sgd": Job(1, {"optim.name": "sgd", "optim.nesterov": True}),
    "one-lars": Job(1, {"optim.name": "lars"}),
    "one-lamb": Job(1, {"optim.name": "lamb", "optim.schedule": "cosine"}),
    "one-fp64": Job(1, {"train.precision": "fp64", "model.tied": False}),
    "one-dropout": Job(1, {"model.dropout": 0.2, "train.micro_batches": 3}),
    "one-bf16": Job(1, {"train.precision": "bf16", "model.recompute": "selective"}),
    "one-bf16-fp32-sums": Job(1, {"train.precision": "bf16", "train.reduce": "fp32", "train.micro_batches": 3}),
    "one-fp16": Job(1, {"train.precision": "fp16", "model.recompute": "full"}),
    "data-2": Job(2),
    "data-3-fp64": Job(3, {"train.precision": "fp64", "train.micro_batches": 2}),
    "data-4-doubling": Job(4, {"comm.algorithm": "recursive_doubling"}),
    "data-2-tcp": Job(2, {"net.shared_memory": False}),
    "data-2-tls-bf16": Job(2, {"net.shared_memory": False, "net.tls": True, "train.precision": "bf16"}),
    "data-2-fp32-sums": Job(2, {"train.precision": "bf16", "train.reduce": "fp32", "train.micro_batches": 2}),
    "data-2-wire": Job(2, {"comm.wire": "fp32", "train.precision": "bf16", "net.shared_memory": False}),
    "zero-1": Job(2, {"parallel.zero": 1}),
    "zero-1-lamb": Job(3, {"parallel.zero": 1, "optim.name": "lamb", "train.precision": "fp64"}),
    "zero-2": Job(2, {"parallel.zero": 2, "train.micro_batches": 2}),
    "zero-2-step": Job(3, {"parallel.zero": 2, "train.micro_batches": 2, "zero.scatter": "step", "train.precision": "bf16"}),
    "zero-3": Job(2, {"parallel.zero": 3}),
    "zero-3-fp64": Job(3, {"parallel.zero": 3, "train.precision": "fp64", "train.micro_batches": 2, "model.tied": False}),
    "zero-3-recompute": Job(2, {"parallel.zero": 3, "model.recompute": "full", "train.precision": "bf16"}),
    "zero-3-host": Job(2, {"parallel.zero": 3, "zero.offload": "host", "train.precision": "bf16"}),
    "zero-2-disk": Job(2, {"parallel.zero": 2, "zero.offload": "disk", "zero.offload_path": "slices"}),
    "zero-1-fp32-sums": Job(2, {"parallel.zero": 1, "train.precision": "bf16", "train.reduce": "fp32"}),
    "gpipe": mesh(2, parallel__pipeline=2, pipeline__schedule="gpipe"),
    "1f1b": mesh(3, parallel__pipeline=3, train__precision="fp64"),
    "interleaved": mesh(2, parallel__pipeline=2, pipeline__schedule="interleaved", pipeline__chunks=2),
    "zero-bubble": mesh(2, parallel__pipeline=2, pipeline__schedule="zero-bubble", train__precision="fp64"),
    "pipeline-data": mesh(4, parallel__pipeline=2),
    "pipeline-zero-1": mesh(4, parallel__pipeline=2, parallel__zero=1, pipeline__schedule="gpipe"),
    "pipeline-zero-2": mesh(4, parallel__pipeline=2, parallel__zero=2, zero__scatter="micro_batch"),
    "pipeline-zero-3": mesh(4, parallel__pipeline=2, parallel__zero=3, zero__scatter="step", train__precision="fp64"),
    "tensor": mesh(2, parallel__tensor=2),
    "tensor-whole": mesh(2, parallel__tensor=2, parallel__sequence=False, train__precision="fp64", optim__name="lamb"),
    "tensor-zero-3": mesh(4, parallel__tensor=2, parallel__zero=3),
    "pipeline-tensor": mesh(4, parallel__pipeline=2, parallel__tensor=2, pipeline__schedule="zero-bubble"),
    "servers": Job(2, {"server.count": 2, "train.precision": "fp64"}),
    "servers-apart": Job(2, {"server.count": 1, "server.place": "separate", "server.mode": "bounded"}),
    "resumed": Job(3, {"parallel.zero": 2, "train.precision": "fp64"}, 2, {"parallel.zero": 0, "parallel.tensor": 2}),
    "resumed-offload": Job(2, {"parallel.zero": 3, "zero.offload": "host", "train.precision": "bf16"}, 1,
                           {"parallel.zero": 0, "zero.offload": "none"}),
}

# fp64, so that another machine's kernels give the same numbers to rounding.
GOLDEN = ["one-fp64", "data-3-fp64", "zero-1-lamb", "zero-3-fp64", "1f1b", "zero-bubble", "pipeline-zero-3",
          "tensor-whole", "servers", "resumed"]


def words(settings):
    return [word for key, value in settings.items()
            for word in ("--set", f"{key}={str(value).lower() if isinstance(value, bool) else value}")]


def run(job, folder, program=BUILD / "echelon"):
    """Trains a job in an empty folder. Returns what its metrics.jsonl and ledger.json hold, as bytes by name."""
    draw = random.Random("text")
    (folder / "text.bin").write_bytes(bytes(draw.choice(b"abcdefgh \n") for _ in range(4000)))
    (folder / "slices").mkdir()

    def train(ranks, *arguments):
        command = [str(program), "train", "--nproc", str(ranks), *arguments]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=180, stdin=subprocess.DEVNULL,
                              env=os.environ | {"OMP_NUM_THREADS": "1", "ECHELON_CACHE": str(folder / "cache")})
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")

    train(job.ranks, "--name", "job", *words(COMMON | job.settings))
    if job.resumed_ranks:
        train(job.resumed_ranks, "--resume", "runs/job", *words(job.resumed_settings | {"train.steps": 2 * STEPS}))
    return {name: (folder / "runs/job" / name).read_bytes() for name in ("metrics.jsonl", "ledger.json")}


def record(target, program, names):
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            files = run(JOBS[name], Path(folder), program)
        (target / name).mkdir(parents=True, exist_ok=True)
        for file, content in files.items():
            (target / name / file).write_bytes(content)
        print(name, flush=True)


def content_of(path):
    """A file's bytes. Of a ledger its entries in one order, since ranks enter operations as they are begun, and without
    "setup": there ranks compare their options as text, which is longer with every new option."""
    if not path.exists():
        return None
    if path.name != "ledger.json":
        return path.read_bytes()
    ledger = json.loads(path.read_text())
    operations = [entry for entry in ledger.pop("operations", []) if entry["tag"] != "setup"]
    ledger.pop("sent_bytes", None)
    return ledger | {"operations": sorted(operations, key=json.dumps)}


def differences(folder, other):
    """The files of one record that differ from the other's, or that only one has."""
    files = {path.relative_to(root) for root in (folder, other) for path in root.rglob("*") if path.is_file()}
    return sorted(str(file) for file in files if content_of(folder / file) != content_of(other / file))


def sent(ledger):
    """Calls and bytes of a ledger by operation and purpose, of all ranks; "setup" depends on names of the machine."""
    sums = {}
    for entry in json.loads(ledger)["operations"]:
        if entry["tag"] != "setup":
            one = sums.setdefault(f"{entry['operation']} {entry['tag']}", {"calls": 0, "bytes": 0})
            for key in one:
                one[key] += entry[key]
    return dict(sorted(sums.items()))


def golden(names=GOLDEN):
    kept = {}
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            files = run(JOBS[name], Path(folder))
        kept[name] = {"metrics": [json.loads(line) for line in files["metrics.jsonl"].splitlines()],
                      "sent": sent(files["ledger.json"])}
    return kept


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("folder", type=Path)
    recording.add_argument("--program", type=lambda text: Path(text).resolve(), default=BUILD / "echelon")
    recording.add_argument("--only", nargs="+", choices=JOBS, default=list(JOBS))
    comparing = commands.add_parser("compare")
    comparing.add_argument("folder", type=Path)
    comparing.add_argument("other", type=Path)
    commands.add_parser("golden")
    given = parser.parse_args()
    if given.command == "record":
        record(given.folder, given.program, given.only)
    elif given.command == "compare":
        apart = differences(given.folder, given.other)
        print("\n".join(apart) or "no byte differs")
        sys.exit(bool(apart))
    else:
        GOLDEN_FILE.write_text(json.dumps(golden(), indent=1) + "\n")


if __name__ == "__main__":
    main()
