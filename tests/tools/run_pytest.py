"""Runs pytest on one file for ctest. A suite that cannot run here exits with 77 and says why."""

import sys

SKIPPED = 77
NO_TESTS_RAN = 5  # pytest's status when a module skipped itself, as importorskip() does


def main() -> int:
    try:
        import pytest
    except ImportError:
        print(f"SKIPPED: {sys.executable} has no pytest")
        return SKIPPED
    reasons = []

    class Reasons:
        @staticmethod
        def pytest_collectreport(report):
            if report.skipped:
                reasons.append(report.longrepr[2].removeprefix("Skipped: "))

    status = pytest.main(["-q", "-rs", "-p", "no:cacheprovider", *sys.argv[1:]], plugins=[Reasons()])
    if status == NO_TESTS_RAN and reasons:
        print("SKIPPED: " + "; ".join(reasons))
        return SKIPPED
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
