"""How ./dev reads its command line, its environment and the machine, on a copy with no build beside it."""

import contextlib
import importlib.machinery
import importlib.util
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]


def load(path):
    """The tool as a module, to call parts of it alone."""
    loader = importlib.machinery.SourceFileLoader("dev", str(path))
    spec = importlib.util.spec_from_loader("dev", loader)
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    return module


class DevTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name).resolve()
        shutil.copy(ROOT / "dev", self.root / "dev")
        shutil.copy(ROOT / "requirements.txt", self.root)
        self.dev = load(self.root / "dev")

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def call(self, *arguments, **env):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("ECHELON_")}
        return subprocess.run([sys.executable, str(self.root / "dev"), *arguments], env={**clean, **env},
                              capture_output=True, text=True, timeout=60)

    def inside(self, function, *arguments):
        """Calls a part of the tool; returns (status, what it printed)."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            try:
                status = function(*arguments)
            except SystemExit as e:
                status = e.code
        return status, out.getvalue()


class CommandLine(DevTest):
    def test_help_names_every_command(self):
        for arguments in ([], ["help"], ["--help"], ["test", "--help"]):
            result = self.call(*arguments)
            self.assertEqual(result.returncode, 0)
            for name in self.dev.COMMANDS:
                self.assertIn(f"./dev {name}", result.stdout)

    def test_unknown_command_names_the_nearest(self):
        result = self.call("trian")
        self.assertEqual(result.returncode, 2)
        self.assertIn("did you mean 'train'?", result.stderr)

    def test_bench_lists_the_names_and_names_the_nearest(self):
        self.write("benchmarks/step.py", "")
        self.write("benchmarks/_shared.py", "")
        result = self.call("bench")
        self.assertEqual((result.returncode, result.stdout.strip()), (0, "benchmarks: step"))
        result = self.call("bench", "stp")
        self.assertEqual(result.returncode, 2)
        self.assertIn("did you mean 'step'?", result.stderr)

    def test_unknown_sanitizer_is_refused(self):
        for arguments in (["--sanitize", "memory"], ["--sanitize=memory"], ["--sanitize"]):
            result = self.call("test", *arguments)
            self.assertEqual(result.returncode, 2)
            self.assertIn("address, undefined, thread", result.stderr)

    def test_doctor_tells_of_a_compiler_without_the_shared_library(self):
        compiler = self.write("g++", '#!/bin/sh\necho "${1#-print-file-name=}"\n')
        compiler.chmod(0o755)

        def row(cxx):
            lines = self.call("doctor", CXX=cxx).stdout.splitlines()
            return [line.split(maxsplit=1)[1] for line in lines if line.startswith("libstdc++")]

        self.assertIn("as an archive only", *row(str(compiler)))
        self.assertIn("as an archive only", *row(f"env {compiler}"))
        self.assertEqual(row("c++"), ["shared"])

    def test_train_becomes_the_program(self):
        program = self.write("build/echelon", '#!/bin/sh\necho "$@"; kill -TERM $$\n')
        program.chmod(0o755)
        code = ("import sys; sys.path.insert(0, sys.argv[1]); from dev_test import load\n"
                "dev = load(sys.argv[2]); dev.build = lambda *_: None; dev.train(['--set', 'a.b=1'])")
        result = subprocess.run([sys.executable, "-c", code, str(Path(__file__).parent), str(self.root / "dev")],
                                capture_output=True, text=True)
        self.assertEqual(result.stdout, "train --set a.b=1\n")
        self.assertEqual(result.returncode, -signal.SIGTERM)


class BorrowedPython(DevTest):
    def torch(self, version, cuda="None"):
        self.write("site/torch/__init__.py", "raise RuntimeError('torch must not be imported')")
        self.write("site/torch/version.py", f"__version__ = '{version}'\ncuda: Optional[str] = {cuda}\nhip = None\n")
        return {"ECHELON_PYTHON": sys.executable, "PYTHONPATH": str(self.root / "site")}

    def test_version_outside_of_the_range_is_one_sentence(self):
        for version in ("2.10.1", "2.14.0+cu130", "3.0.0"):
            result = self.call("build", **self.torch(version))
            self.assertEqual(result.returncode, 2)
            self.assertEqual(result.stderr, f"dev: ECHELON_PYTHON has torch {version}; Echelon builds with 2.11 to 2.13\n")

    def test_version_and_cuda_are_read_without_importing(self):
        for cuda, expected in (("None", ""), ("'13.0'", "13.0")):
            with mock.patch.dict(os.environ, self.torch("2.13.0+x", cuda)):
                folder, version, found = self.dev.torch_of(sys.executable)
            self.assertEqual((folder, version, found), (self.root / "site/torch", "2.13.0+x", expected))
            self.assertTrue(self.dev.in_range(version))

    def test_no_program(self):
        result = self.call("build", ECHELON_PYTHON="/no/python")
        self.assertEqual((result.returncode, result.stderr),
                         (2, "dev: ECHELON_PYTHON is '/no/python', which is no program\n"))

    def test_installs_nothing(self):
        with mock.patch.dict(os.environ, self.torch("2.12.0")), \
             mock.patch.object(self.dev, "missing", lambda table: ["cmake"]), \
             mock.patch.object(self.dev, "run", self.fail):
            status, text = self.inside(self.dev.set_up)
        self.assertEqual(status, 2)
        self.assertIn("nothing is installed: cmake", text)


class SetUp(DevTest):
    def machine(self, absent, root=None):
        """A machine that lacks some packages; root is what goes before apt-get, None if it may not run."""
        self.ran = []
        for name, fake in {
                "missing": lambda table: [n for n in absent if n in table],
                "installer": lambda: root,
                "run": lambda label, command, *_, **__: self.ran.append(" ".join(command)) or True}.items():
            patch = mock.patch.object(self.dev, name, fake)
            patch.start()
            self.addCleanup(patch.stop)

    @unittest.skipUnless(shutil.which("apt-get"), "needs apt-get")
    def test_without_root_it_prints_the_line_to_run(self):
        self.machine(["cmake", "libfmt-dev"])
        status, text = self.inside(self.dev.system_packages)
        self.assertEqual(status, 2)
        self.assertIn("apt-get install -y --no-install-recommends cmake libfmt-dev", text)
        self.assertEqual(self.ran, [])

    @unittest.skipUnless(shutil.which("apt-get"), "needs apt-get")
    def test_root_installs_what_is_missing(self):
        self.machine(["cmake", "mold"], root=[])
        self.inside(self.dev.system_packages)
        self.assertEqual([line.split("apt-get ")[1] for line in self.ran],
                         ["update", "install -y --no-install-recommends cmake mold"])

    def test_missing_optional_package_is_said_once(self):
        self.machine(["mold"])
        self.assertEqual(self.inside(self.dev.system_packages), (None, "dev: without mold: linking is slower\n"))
        self.assertEqual(self.inside(self.dev.system_packages), (None, ""))

    def test_torch_is_installed_before_all_else_and_only_once(self):
        self.machine([])
        self.inside(self.dev.python_packages)
        self.assertEqual(len(self.ran), 3)
        self.assertRegex(self.ran[1], r"pip install .* torch==[\d.]+$")
        self.assertRegex(self.ran[2], r"pip install .* -r .*requirements.txt$")
        self.inside(self.dev.python_packages)
        self.assertEqual(len(self.ran), 3)

    def test_bundle_copies_the_folders(self):
        for folder, _, _ in self.dev.HEADERS.values():
            self.write(f"usr/include/{folder}/a.h", "// a\n")
        for name in ("include/gtest/gtest.h", "src/gtest-all.cc", "test/big.cc"):
            self.write(f"usr/gtest/{name}", "")
        with mock.patch.object(self.dev, "include_dirs", lambda: [self.root / "usr/include"]), \
             mock.patch.object(self.dev, "gtest_source", lambda: self.root / "usr/gtest"):
            self.inside(self.dev.bundle, [str(self.root / "out")])
        copied = sorted(str(p.relative_to(self.root / "out")) for p in (self.root / "out").rglob("*") if p.is_file())
        self.assertEqual(copied, sorted([f"include/{f}/a.h" for f, _, _ in self.dev.HEADERS.values()]
                                        + ["src/googletest/include/gtest/gtest.h", "src/googletest/src/gtest-all.cc"]))


if __name__ == "__main__":
    unittest.main()
