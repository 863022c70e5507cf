"""What tests leave behind (conftest.py): no process, and nothing in the user's cache."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from conftest import ENVIRONMENT

FAILS = '''
import time


def test_that_fails_while_its_job_runs(echelon):
    job = echelon.start(*echelon.train_arguments("--name", "job", "--nproc", 2, train_steps=1000000))
    while not (echelon.folder / "runs/job/metrics.jsonl").exists():
        assert job.poll() is None, job.communicate()
        time.sleep(0.02)
    raise AssertionError("as it should")
'''


def folder_of(pid):
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:  # it has ended
        return ""


def test_a_job_does_not_outlive_a_test_that_failed(tmp_path):
    (tmp_path / "fails_test.py").write_text(FAILS)
    here = str(Path(__file__).parent)
    result = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", "--basetemp", "jobs",
                             "fails_test.py"], cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": here}, timeout=100)
    assert result.returncode == 1 and "as it should" in result.stdout, result.stdout + result.stderr
    left = [entry for entry in filter(str.isdigit, os.listdir("/proc")) if folder_of(entry).startswith(str(tmp_path))]
    assert not left, left


def test_the_cache_of_the_tests_is_not_the_users():
    for variables in (os.environ, ENVIRONMENT):
        cache = Path(variables["ECHELON_CACHE"])
        assert cache.is_dir() and cache.parent == Path(tempfile.gettempdir())
