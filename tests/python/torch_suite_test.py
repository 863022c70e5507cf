"""PyTorch's own tests of collectives, messages and barriers over the backend "echelon", at two ranks.

The names are those of torch_suite_gloo.txt: the tests that Gloo executes and passes here (made by running
torch_suite.py --backend gloo). Each must be executed and pass under echelon too; the rest of them are in
torch_suite_long_test.py.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
BUILD = Path(os.environ.get("ECHELON_BUILD_DIR", HERE.parents[1] / "build"))
COLLECTIVES = r"^test_(all_|broadcast|reduce|gather|scatter|barrier|send|isend|irecv|batch|monitored|sparse|get_future)"

# Tests that cannot pass, and why. At most one in twenty.
EXCEPTIONS = {
    "test_ddp_logging_data_cpu": "asks DDP's log for the backend's name, and torch writes 'custom' there for every "
                                 "backend that is not its own",
}


def gloo_passes():
    return (HERE / "torch_suite_gloo.txt").read_text().split()


def outcome(tmp_path, *arguments):
    """The summary of a run of torch_suite.py."""
    if not (BUILD / "python" / "echelon" / "__init__.py").exists():
        pytest.skip(f"{BUILD} has no Python package (it was built without Python.h)")
    summary = tmp_path / "summary.json"
    result = subprocess.run([sys.executable, HERE / "torch_suite.py", "--json", summary, *arguments], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=800,
                            env={**os.environ, "ECHELON_BUILD_DIR": str(BUILD)})
    assert summary.exists(), result.stdout[-5000:]
    return json.loads(summary.read_text())


def check(summary, names):
    failed = {name: summary["reasons"][name][-1500:] for name in summary["failed"] if name not in EXCEPTIONS}
    assert not failed, "\n\n".join(f"{name}: {reason}" for name, reason in failed.items())
    not_run = {name: summary["reasons"].get(name, "not in this torch") for name in names
               if name not in EXCEPTIONS and name not in summary["passed"]}
    assert not not_run, f"Gloo passes these, and they were not executed: {not_run}"


def test_collectives_that_gloo_passes(tmp_path):
    names = [name for name in gloo_passes() if re.search(COLLECTIVES, name)]
    assert len(names) >= 50
    check(outcome(tmp_path, "--tests", HERE / "torch_suite_gloo.txt", "--match", COLLECTIVES), names)


def test_exceptions_are_few_and_known():
    assert len(EXCEPTIONS) <= len(gloo_passes()) / 20
    assert set(EXCEPTIONS) <= set(gloo_passes())
