"""Two hundred random kills, with another seed than the twenty of every run (random_kills.py)."""

import random_kills


def test_two_hundred_random_kills_lose_no_saved_step(tmp_path):
    wrong = random_kills.kills("long", range(200), tmp_path)
    assert not wrong, "\n\n".join(wrong)
