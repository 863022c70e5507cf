"""Two thousand random command lines, with another seed than the two hundred of every run (option_fuzz.py)."""

import option_fuzz


def test_two_thousand_random_command_lines_end_as_documented(tmp_path):
    wrong = option_fuzz.fuzz("long", range(2000), tmp_path)
    assert not wrong, "\n\n".join(wrong)
