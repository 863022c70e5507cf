"""Lists the tests that a run of ctest skipped, so that none of them is taken for a pass.

    skips.py RESULTS.xml             what was skipped, by 'ctest --output-junit RESULTS.xml', and why
    skips.py RESULTS.xml --strict    the same; exits with 1 if a skip is not in tests/allowed_skips.txt

A ctest entry is one program with many tests of its own, and ctest calls it passed when some of them were
skipped. What they print says which: GoogleTest's "[  SKIPPED ] Suite.Test (0 ms)" after the reason, unittest's
"... skipped 'reason'", and "SKIPPED test: reason" or "SKIPPED: reason" (the whole program) of run_pytest.py and
of our own scripts.
"""

import argparse
import fnmatch
import re
import sys
import xml.etree.ElementTree
from dataclasses import dataclass
from pathlib import Path

ALLOWED = Path(__file__).resolve().parents[1] / "allowed_skips.txt"
NO_REASON = "it gives no reason"

GTEST_REASON = re.compile(r"^\S+:\d+: Skipped$")
GTEST_SKIP = re.compile(r"^\[  SKIPPED \] ([^\s,]+)(?:, where .*)? \(\d+ ms\)$")
UNITTEST_SKIP = re.compile(r"^(\w+).* \.\.\. skipped ['\"](.*)['\"]$")
OWN_SKIP = re.compile(r"^SKIPPED(?: (\S+))?: (.*)$")


@dataclass(frozen=True)
class Skip:
    program: str  # the ctest entry
    test: str  # within it; "*": all of it
    reason: str

    def __str__(self):
        return f"{self.program}{'' if self.test == '*' else ' ' + self.test}: {self.reason}"


def skips_in(program, text):
    """The skips that a program's output tells of."""
    found, reason = [], None
    for line in text.splitlines():
        if GTEST_REASON.match(line):
            reason = []
        elif match := GTEST_SKIP.match(line):
            found.append(Skip(program, match[1], " ".join(reason or []).strip() or NO_REASON))
            reason = None
        elif match := UNITTEST_SKIP.match(line) or OWN_SKIP.match(line):
            found.append(Skip(program, match[1] or "*", match[2].strip() or NO_REASON))
        elif reason is not None:
            reason.append(line.strip())
    return found


def skips_of(results):
    """The skips of a run of ctest, by its JUnit file."""
    found = []
    for case in xml.etree.ElementTree.parse(results).getroot().iter("testcase"):
        inside = skips_in(case.get("name"), case.findtext("system-out") or "")
        if case.get("status") == "disabled":
            inside = [Skip(case.get("name"), "*", "it is disabled")]
        elif case.find("skipped") is not None and not inside:
            inside = [Skip(case.get("name"), "*", NO_REASON)]
        found += inside
    return found


def read_allowed(path):
    """Triples of patterns: program, test, reason."""
    allowed = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        words = line.split(maxsplit=2)
        if len(words) != 3:
            sys.exit(f"{path}, line {number}: a line is PROGRAM TEST REASON, not {line!r}")
        allowed.append(words)
    return allowed


def is_allowed(skip, allowed):
    values = (skip.program, skip.test, skip.reason)
    return any(all(map(fnmatch.fnmatchcase, values, patterns)) for patterns in allowed)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("results", type=Path)
    options.add_argument("--strict", action="store_true", help="fail for a skip that is not allowed")
    options.add_argument("--allowed", type=Path, default=ALLOWED, help="the list of allowed skips")
    given = options.parse_args()
    skips = skips_of(given.results)
    if not skips:
        print("no test was skipped")
        return 0
    allowed = read_allowed(given.allowed) if given.allowed.is_file() else []
    wrong = [skip for skip in skips if not is_allowed(skip, allowed)]
    print(f"{len(skips)} test{'s were' if len(skips) > 1 else ' was'} skipped:")
    for skip in skips:
        print(f"  {skip}{'  [not in allowed_skips.txt]' if skip in wrong else ''}")
    if wrong and given.strict:
        print(f"{len(wrong)} of them may not be skipped here: make the machine able to run them, or add a line with the "
              f"reason to {given.allowed.name}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
