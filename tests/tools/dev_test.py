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

        self.assertIn("only a static C++ library", *row(str(compiler)))
        self.assertIn("only a static C++ library", *row(f"env {compiler}"))
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
                         (2, "dev: ECHELON_PYTHON is '/no/python', which is not a program\n"))

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


@unittest.skipUnless(shutil.which("ctest"), "needs ctest")
class SkippedTests(DevTest):
    GTEST = r"""echo '[ RUN      ] Gpu.Adds'
echo '/src/gpu_test.cpp:19: Skipped'
echo 'there is no GPU here'
echo ''
echo '[  SKIPPED ] Gpu.Adds (0 ms)'
echo '[       OK ] Cpu.Adds (0 ms)'
echo '[  PASSED  ] 1 test.'
echo '[  SKIPPED ] 1 test, listed below:'
echo '[  SKIPPED ] Gpu.Adds'
"""

    def run_tests(self, programs, allowed="", **env):
        """'./dev test' over these shell programs, with nothing to build; (status, what it printed)."""
        shutil.copy(ROOT / "tests/tools/skips.py", self.write("tests/tools/skips.py", ""))
        self.write("tests/allowed_skips.txt", allowed)
        entries = [f'add_test({name} sh "{self.write(f"{name}.sh", text)}")\n'
                   f'set_tests_properties({name} PROPERTIES SKIP_RETURN_CODE 77)\n' for name, text in programs.items()]
        self.write("build/CTestTestfile.cmake", "".join(entries))
        code = ("import sys; sys.path.insert(0, sys.argv[1]); from dev_test import load\n"
                "dev = load(sys.argv[2]); dev.build = lambda *_: None; sys.exit(dev.test([]))")
        clean = {k: v for k, v in os.environ.items() if k != "CI"}
        result = subprocess.run([sys.executable, "-c", code, str(Path(__file__).parent), str(self.root / "dev")],
                                capture_output=True, text=True, env={**clean, **env}, timeout=60)
        return result.returncode, result.stdout + result.stderr

    def test_a_skip_inside_a_program_that_passes_is_counted_and_listed(self):
        status, text = self.run_tests({"train_test": self.GTEST})
        self.assertEqual(status, 0, text)
        self.assertIn("100% tests passed, 0 tests failed out of 1", text)
        self.assertIn("1 test was skipped:\n  train_test Gpu.Adds: there is no GPU here", text)

    def test_a_skip_that_no_list_allows_fails_in_ci(self):
        for ci, expected in (("true", 1), ("1", 1), ("false", 0), ("", 0)):
            status, text = self.run_tests({"train_test": self.GTEST}, CI=ci)
            self.assertEqual(status, expected, text)

    def test_a_listed_skip_passes_in_ci_only_for_its_reason(self):
        listed = "# why CI may skip it\ntrain_test Gpu.* there is no GPU*\n"
        status, text = self.run_tests({"train_test": self.GTEST}, listed, CI="true")
        self.assertEqual(status, 0, text)
        status, text = self.run_tests({"train_test": self.GTEST.replace("there is no GPU", "it is slow")}, listed, CI="true")
        self.assertEqual(status, 1, text)
        self.assertIn("train_test Gpu.Adds: it is slow here  [not in allowed_skips.txt]", text)

    def test_a_program_that_skips_as_a_whole_is_listed_with_its_reason(self):
        status, text = self.run_tests({"mpi": "echo 'SKIPPED: no mpirun'; exit 77", "silent": "exit 77"}, CI="true")
        self.assertEqual(status, 1, text)
        self.assertIn("  mpi: no mpirun", text)
        self.assertIn("  silent: it gives no reason", text)

    def test_a_failure_stays_a_failure_and_skips_are_listed_all_the_same(self):
        status, text = self.run_tests({"bad": "exit 3", "train_test": self.GTEST})
        self.assertNotEqual(status, 0)
        self.assertIn("1 test was skipped", text)

    def test_nothing_skipped_is_said(self):
        status, text = self.run_tests({"good": "exit 0"}, CI="true")
        self.assertEqual(status, 0, text)
        self.assertIn("no test was skipped", text)


@unittest.skipUnless(importlib.util.find_spec("pytest"), "needs pytest")
class RunPytest(DevTest):
    def pytest(self, text):
        result = subprocess.run([sys.executable, str(ROOT / "tests/tools/run_pytest.py"), str(self.write("some_test.py", text))],
                                capture_output=True, text=True, timeout=60)
        return result.returncode, result.stdout

    def test_a_file_whose_tests_all_skip_in_a_fixture_is_skipped(self):
        status, text = self.pytest("""import pytest
@pytest.fixture
def hosts():
    pytest.skip("no namespaces here")
def test_sums(hosts):
    assert False
@pytest.mark.parametrize("n", ["a b", "c"])
def test_joins(hosts, n):
    assert False
""")
        self.assertEqual(status, 77, text)
        self.assertIn("SKIPPED test_sums: no namespaces here\n", text)
        self.assertIn("SKIPPED test_joins[a_b]: no namespaces here\n", text)

    def test_a_module_that_skips_itself_is_skipped(self):
        status, text = self.pytest("import pytest\npytest.importorskip('no_such_module')\ndef test_it(): pass\n")
        self.assertEqual(status, 77, text)
        self.assertRegex(text, r"(?m)^SKIPPED: could not import 'no_such_module'")

    def test_a_skip_beside_a_pass_is_printed_and_passes(self):
        status, text = self.pytest("import pytest\ndef test_a(): pass\ndef test_b(): pytest.skip('one core')\n")
        self.assertEqual(status, 0, text)
        self.assertIn("SKIPPED test_b: one core\n", text)

    def test_a_failure_beside_skips_fails(self):
        status, text = self.pytest("import pytest\ndef test_a(): assert 0\ndef test_b(): pytest.skip('one core')\n")
        self.assertEqual(status, 1, text)


if __name__ == "__main__":
    unittest.main(verbosity=2)  # names each skipped test, for skips.py
