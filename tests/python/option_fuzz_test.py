"""Two hundred random command lines (option_fuzz.py)."""

import subprocess

import option_fuzz


def test_random_command_lines_end_in_time_with_a_documented_code_and_one_sentence(tmp_path):
    wrong = option_fuzz.fuzz("1", range(200), tmp_path)
    assert not wrong, "\n\n".join(wrong)


def test_what_is_looked_for_is_found():
    """Each kind of bad end is one that the fuzz would report."""

    def ended(code, err):
        return option_fuzz.faults(["train"], subprocess.CompletedProcess([], code, "", err))

    assert ended(2, "echelon: error: there is no file x\n") == []
    for code, err in ((139, ""), (-11, ""), (3, ""), (1, ""), (2, ""), (2, "usage: ...\n"),
                      (2, "echelon: error: a\nechelon: error: b\n"),
                      (1, "echelon: error: [json.exception.type_error.302] type must be number\n"),
                      (134, "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"),
                      (1, "echelon: error: expected scalar\nException raised from check at x.cpp:3\nframe #0: c10::Error\n"),
                      (2, "echelon: error: " + "x" * 3000 + "\n"),
                      (0, "echelon: error: a rank failed\n"),
                      (1, "echelon: error: Traceback (most recent call last):\n"),
                      (1, "echelon: error: rank 1 was killed by signal 11 (Segmentation fault)\n"),
                      (1, "echelon: error: a rank failed\n" * 40)):
        assert ended(code, err), (code, err)
