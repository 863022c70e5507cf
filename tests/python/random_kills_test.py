"""Twenty random kills (random_kills.py)."""

import random_kills


def test_random_kills_end_the_job_leave_nothing_behind_and_lose_no_saved_step(tmp_path):
    wrong = random_kills.kills("1", range(20), tmp_path)
    assert not wrong, "\n\n".join(wrong)
