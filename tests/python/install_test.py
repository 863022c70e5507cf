"""What `cmake --install` leaves: a program and a Python package that need nothing of the folder they were built in."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import BUILD

ROOT = Path(__file__).resolve().parents[2]
CACHE = (BUILD / "CMakeCache.txt").read_text()
pytestmark = pytest.mark.skipif("ECHELON_INSTALL_TORCH:BOOL=ON" not in CACHE, reason="torch is not installed with it")


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """Installed, and then moved: nothing may depend on where it was installed either."""
    folder = tmp_path_factory.mktemp("install")
    subprocess.run(["cmake", "--install", str(BUILD), "--prefix", str(folder / "there")], check=True, timeout=240,
                   capture_output=True)
    (folder / "there").rename(folder / "here")
    yield folder / "here"
    shutil.rmtree(folder)


def run(*command, **environment):
    clean = {key: value for key, value in os.environ.items() if key not in ("LD_LIBRARY_PATH", "PYTHONPATH")}
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120,
                          stdin=subprocess.DEVNULL, env=clean | environment)


def test_the_program_finds_its_libraries_in_its_own_prefix(prefix):
    program = prefix / "bin" / "echelon"
    paths = re.findall(r"R(?:UN)?PATH.*\[(.*)\]", run("readelf", "-d", program).stdout)
    assert paths == ["$ORIGIN/../lib/echelon"]
    loaded = dict(re.findall(r"(\S+) => (\S+)", run("ldd", program).stdout))
    assert "not" not in loaded.values(), loaded
    ours = {name: Path(path).resolve() for name, path in loaded.items() if re.match(r"lib(torch|c10|gomp)", name)}
    assert {"libtorch_cpu.so", "libc10.so"} <= set(ours)
    assert all(prefix in path.parents for path in ours.values()), ours
    assert not any(str(ROOT) in path for path in loaded.values()), loaded


def test_the_program_trains(prefix, tmp_path):
    (tmp_path / "text.txt").write_text("the rank sends a slice to its peer\n" * 100)
    result = run("env", "-C", tmp_path, prefix / "bin" / "echelon", "train", "--data", "text.txt", "--name", "a", "--nproc", 2,
                 *(word for key in ("train.steps=2", "model.layers=1", "model.width=32", "model.heads=2",
                                    "model.context=16", "train.threads=1") for word in ("--set", key)))
    assert result.returncode == 0, result.stdout + result.stderr
    assert (tmp_path / "runs" / "a" / "weights" / "model.safetensors").exists()


def test_nothing_that_is_installed_names_the_build(prefix):
    named = []
    for path in prefix.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.suffix in (".cmake", ".h", ".py"):
            if str(BUILD) in path.read_text(errors="replace"):
                named.append(str(path.relative_to(prefix)))
    assert named == []


def test_python_finds_the_backend_and_sums_with_it(prefix, tmp_path):
    packages = list(prefix.glob("lib/python3*/site-packages"))
    assert len(packages) == 1
    assert run("readelf", "-d", next(packages[0].glob("echelon/_backend*.so"))).stdout.count("RUNPATH") == 0
    program = tmp_path / "sum.py"
    program.write_text("import torch, echelon, torch.distributed as dist\n"
                       "assert 'site-packages' in echelon.__file__\n"
                       "dist.init_process_group('echelon')\n"
                       "t = torch.ones(3) * (dist.get_rank() + 1)\n"
                       "dist.all_reduce(t)\n"
                       "assert t.tolist() == [3, 3, 3], t\n"
                       "dist.destroy_process_group()\n"
                       "print('summed')\n")
    result = run(prefix / "bin" / "echelon", "launch", "--no-prefix", "--nproc", 2, "--", sys.executable, program,
                 PYTHONPATH=str(packages[0]))
    assert result.returncode == 0 and result.stdout.count("summed") == 2, result.stdout + result.stderr
