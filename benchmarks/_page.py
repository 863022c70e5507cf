"""The common parts of benchmark pages: tables, and the description of the machine and the build."""

import datetime
import os
import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = Path(os.environ.get("ECHELON_BUILD_DIR", ROOT / "build"))


def plain(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths)))
                     for row in rows)


def markdown(rows):
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" + "--:|" * (len(rows[0]) - 1), *lines[1:]])


def output_of(*command):
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60).stdout.strip()
    except OSError:
        return ""


def torch_version():
    """Benchmarks that only use the program also run without torch in Python."""
    try:
        import torch
    except ImportError:
        return []
    return [("torch", f"{torch.__version__}, {torch.backends.cpu.get_cpu_capability()}")]


def machine(cpu_note="", device="cpu", program=BUILD / "echelon"):
    """What a result depends on, as (name, value)."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    facts = [("CPU", f"{model}, {len(os.sched_getaffinity(0))} cores{cpu_note}"),
             ("Load before", " ".join(f"{x:.1f}" for x in os.getloadavg())),
             *torch_version(),
             ("Echelon", output_of(str(program), "version")),
             ("Commit", output_of("git", "describe", "--always", "--dirty") or "unknown")]
    if device == "cuda":
        import torch

        driver = output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0]
        facts.insert(1, ("GPU", f"{torch.cuda.get_device_name()}, driver {driver or 'unknown'}, CUDA {torch.version.cuda}"))
    return facts


def command_line():
    return f"./dev bench {Path(sys.argv[0]).stem} {' '.join(a for a in sys.argv[1:] if a != '--save')}".strip()


def save(name, title, facts, rounds, tables, docs=ROOT / "docs", today=None, command=None):
    """Writes docs/benchmarks/DATE-NAME.md: machine, build and command, then the sections (heading, rows or prose)."""
    today, bench = today or datetime.date.today().isoformat(), Path(sys.argv[0]).stem
    out = [f"# {title}, {today}", ""] + [f"- {fact}: {value}" for fact, value in facts]
    out += [f"- Command: `{command or command_line()}`", f"- Rounds: {rounds}", ""]
    for heading, rows in tables:
        out += [f"## {heading}", "", rows if isinstance(rows, str) else markdown(rows), ""]
    path = docs / "benchmarks" / f"{today}-{name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*out, f"benchmarks/{bench}.py says how it is measured.", ""]))
    print(f"\nwritten: {os.path.relpath(path)}")
