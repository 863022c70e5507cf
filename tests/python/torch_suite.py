"""Runs PyTorch's own distributed tests over a backend on the CPU, and counts what was really executed.

    torch_suite.py --backend echelon --json summary.json            all of them
    torch_suite.py --backend gloo --match all_reduce                those whose name matches
    torch_suite.py --backend echelon --tests names.txt              those of a file
    torch_suite.py --like mpi --world 4 --match all_to_all          those that MPI alone would run

The tests are torch.testing._internal.distributed.distributed_test, unchanged. Many stand under conditions on
the backend's name; a backend of ours is counted like Gloo, so what Gloo has to do, it has to do:
  - the module is imported as for Gloo, since its conditions are read there, and told the true name afterwards;
  - the tables of what a backend can do hold its name beside Gloo's;
  - torch.distributed.monitored_barrier refuses every backend that is not called "gloo": that line is passed by.

Ranks are forked from a server that has imported torch already: a second a test instead of ten.
"""

import argparse
import json
import multiprocessing
import os
import re
import sys
import time
import types
import unittest
import unittest.mock
from pathlib import Path

BUILD = Path(os.environ.get("ECHELON_BUILD_DIR", Path(__file__).resolve().parents[2] / "build"))
SECONDS = "120"  # that one test may take


def parse():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--backend", default="echelon")
    options.add_argument("--like", default="gloo", help="the backend whose conditions hold")
    options.add_argument("--world", default="2", help="ranks")
    options.add_argument("--match", default="", help="a regular expression that the tests' names contain")
    options.add_argument("--tests", type=Path, help="a file of test names, one a line")
    options.add_argument("--json", type=Path, help="where the summary goes")
    return options.parse_args()


# The backend must be known when this module is loaded, here and again in the ranks.
if __name__ == "__main__":
    GIVEN = parse()
    os.environ |= {"TORCH_SUITE_BACKEND": GIVEN.backend, "TORCH_SUITE_LIKE": GIVEN.like, "WORLD_SIZE": GIVEN.world}
BACKEND = os.environ["TORCH_SUITE_BACKEND"]
LIKE = os.environ["TORCH_SUITE_LIKE"]
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("INIT_METHOD", "file://")  # a condition of one test; each test has its own path
os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", SECONDS)


def stand_in_for_expecttest():
    """torch's test modules derive from this package's TestCase; what it adds, these tests do not use."""
    try:
        import expecttest  # noqa: F401
    except ImportError:
        module = types.ModuleType("expecttest")
        module.TestCase = unittest.TestCase
        module.ACCEPT = False
        sys.modules["expecttest"] = module


class CountedLike(str):
    """A backend's name that passes where a test asks at run time whether it is another's."""

    def __eq__(self, other):
        return str(self) == other or other == LIKE

    __hash__ = str.__hash__

    def __ne__(self, other):
        return not self == other


def load(backend):
    """torch's module of tests, for this backend."""
    stand_in_for_expecttest()
    os.environ["BACKEND"] = LIKE
    import torch.distributed as dist
    from torch.testing._internal.common_distributed import DistTestCases
    from torch.testing._internal.distributed import distributed_test as suite

    if type(suite.BACKEND) is not str or LIKE == backend:
        return suite  # (a rank that was forked has it already)
    suite.BACKEND = CountedLike(backend)
    if backend == "gloo":
        return suite
    sys.path.insert(0, str(BUILD / "python"))
    __import__(backend)  # registers itself
    for backends in DistTestCases.backend_feature.values():
        if "gloo" in backends:
            backends.add(backend)
    DistTestCases.backend_feature["plugin"].add(backend)
    for backends in (suite.PROFILING_SUPPORTED_BACKENDS, suite.CUDA_PROFILING_SUPPORTED_BACKENDS,
                     suite.SEND_RECV_PROFILING_SUPPORTED_BACKENDS):
        backends.append(backend)

    checked = dist.monitored_barrier

    def monitored_barrier(*arguments, **keywords):
        with unittest.mock.patch.object(dist.distributed_c10d, "get_backend", lambda group: "gloo"):
            return checked(*arguments, **keywords)

    dist.monitored_barrier = monitored_barrier
    return suite


def run_as_rank(environment, target, arguments, keywords):
    os.environ.clear()
    os.environ.update(environment)
    suite.INIT_METHOD = os.environ["INIT_METHOD"]
    target(*arguments, **keywords)


suite = load(BACKEND)


class TorchSuite(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._start_processes(multiprocessing.get_context("forkserver").Process)

    def _start_processes(self, process):
        def rank(target, name, args, kwargs):  # the server's environment is that of its start
            return process(target=run_as_rank, name=name, args=(dict(os.environ), target, args, kwargs))

        super()._start_processes(rank)


class Outcomes(unittest.TestResult):
    """What became of each test, shown as it happens."""

    def __init__(self, total):
        super().__init__()
        self.outcomes, self.reasons, self.seconds = {}, {}, {}
        self.total = total

    def note(self, test, outcome, reason=""):
        name = test.id().rsplit(".", 1)[-1]
        self.outcomes[name] = outcome
        self.seconds[name] = round(time.monotonic() - self.started, 2)
        if reason:
            self.reasons[name] = reason
        if outcome != "skipped":
            print(f"[{len(self.outcomes)}/{self.total}] {outcome} {name} ({self.seconds[name]} s)", flush=True)

    def startTest(self, test):
        super().startTest(test)
        self.started = time.monotonic()

    def addSuccess(self, test):
        self.note(test, "passed")

    def addSkip(self, test, reason):
        self.note(test, "skipped", reason)

    def addError(self, test, error):
        self.note(test, "failed", self._exc_info_to_string(error, test))
        print(self.reasons[test.id().rsplit(".", 1)[-1]], flush=True)

    addFailure = addError


def main(given):
    names = unittest.TestLoader().getTestCaseNames(TorchSuite)
    if given.tests:
        wanted = given.tests.read_text().split()
        unknown = sorted(set(wanted) - set(names))
        if unknown:
            print(f"this torch has no tests called {', '.join(unknown)}")
        names = [name for name in names if name in set(wanted)]
    names = [name for name in names if re.search(given.match, name)]

    # By name: "__main__" is not preloaded before Python 3.14, whatever its documentation says.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    multiprocessing.set_forkserver_preload([Path(__file__).stem])
    result = Outcomes(len(names))
    started = time.monotonic()
    unittest.TestSuite(TorchSuite(name) for name in names).run(result)
    groups = {outcome: sorted(name for name, its in result.outcomes.items() if its == outcome)
              for outcome in ("passed", "failed", "skipped")}
    summary = {
        "backend": BACKEND,
        "world": int(os.environ["WORLD_SIZE"]),
        "executed": len(groups["passed"]) + len(groups["failed"]),
        **{f"number_{outcome}": len(members) for outcome, members in groups.items()},
        "seconds": round(time.monotonic() - started, 1),
        **groups,
        "reasons": result.reasons,
        "seconds_each": result.seconds,
    }
    print({key: summary[key] for key in list(summary)[:7]})
    if given.json:
        given.json.write_text(json.dumps(summary, indent=1) + "\n")
    return 1 if groups["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(GIVEN))
