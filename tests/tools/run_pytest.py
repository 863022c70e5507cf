"""Runs pytest on one file for ctest, and prints a line "SKIPPED test: reason" for each test that did not run.

Exits with 77, which ctest calls skipped, where no test of the file ran at all: because the module skipped itself, or
because each of its tests did.
"""

import sys

SKIPPED = 77
NO_TESTS_RAN = 5  # pytest's status when a module skipped itself, as importorskip() does


class Outcomes:
    """What pytest reports of each test, as a plugin."""

    def __init__(self):
        self.ran = 0
        self.skips = []

    def skip(self, report):
        _, _, reason = report.longrepr
        test = report.nodeid.partition("::")[2].replace(" ", "_")
        self.skips.append(f"SKIPPED{' ' + test if test else ''}: {reason.removeprefix('Skipped: ')}")

    def pytest_collectreport(self, report):
        if report.skipped:
            self.skip(report)

    def pytest_runtest_logreport(self, report):
        if report.skipped and not hasattr(report, "wasxfail"):
            self.skip(report)
        elif report.when == "call":
            self.ran += 1


def main() -> int:
    try:
        import pytest
    except ImportError:
        print(f"SKIPPED: {sys.executable} has no pytest")
        return SKIPPED
    outcomes = Outcomes()
    status = pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]], plugins=[outcomes])
    print(*outcomes.skips, sep="\n")
    if status in (0, NO_TESTS_RAN) and outcomes.skips and outcomes.ran == 0:
        return SKIPPED
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
