"""The large-batch benchmark tells what became of a run, and draws it without losing any."""

import sys
import xml.etree.ElementTree as xml
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from _curves import Curve, draw, limits, ticks  # noqa: E402
from large_batch import outcome  # noqa: E402

BLACK = "#222222"


def words_of(picture):
    return [element.text or "" for element in xml.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")]


def drawn(*curves):
    return draw("a < b & c", "", {"chart": list(curves)}, [], "x", "y")


def test_a_run_that_diverged_is_told_from_one_that_failed():
    text = "echelon: error: the loss became NaN at step 7; the weights are those after step 6."
    assert outcome(1, text, [[40, 3.0]], 8) == {"state": "diverged", "curve": [[40, 3.0]], "diverged_at": 56}
    assert outcome(1, "no such file", [], 8)["state"] == "failed"
    assert outcome(0, "", [[40, 3.0], [80, 2.5]], 8)["final"] == 2.5


def test_a_curve_that_diverged_or_ends_above_the_chart_is_named_in_it():
    picture = drawn(Curve("good", [(1, 3.0), (2, 2.0)], BLACK), Curve("lost", [(1, 3.0)], BLACK, stopped=1.5),
                    Curve("high", [(1, 9.0), (2, 8.0)], BLACK))
    words = words_of(picture)
    assert "lost: diverged at 2" in words and "high: ends at 8.00" in words
    assert not any("good" in word for word in words)


def test_a_picture_without_curves_says_so():
    assert "not run yet" in words_of(drawn())


def test_limits_hold_every_end_but_not_the_beginnings():
    low, high = limits([Curve("a", [(1, 7.0), (2, 2.1)], BLACK), Curve("b", [(1, 7.5), (2, 3.4)], BLACK)])
    assert low <= 2.1 and 3.4 < high < 5


def test_ticks_are_round_numbers():
    assert ticks(0, 25600, 5) == [0, 10000, 20000]
    assert ticks(2.25, 4.75, 6) == [2.5, 3.0, 3.5, 4.0, 4.5]
