"""What a person sees on a terminal: a bar that moves, within the terminal's width, also through a launcher."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
import time

import pytest
from conftest import ENVIRONMENT

DRAWN = re.compile(r"\x1b\[J([^\r\n]*)\r")  # a line that the next one is drawn over


def resize(terminal, columns, rows=24):
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


class Watched:
    """The program on a terminal of its own."""

    def __init__(self, echelon, arguments, columns=80, rows=24, **environment):
        self.terminal, side = pty.openpty()
        resize(self.terminal, columns, rows)
        self.text = ""
        self.process = subprocess.Popen([str(echelon.program), *arguments], cwd=echelon.folder, stdin=subprocess.DEVNULL,
                                        stdout=side, stderr=side, start_new_session=True,
                                        env={k: v for k, v in ENVIRONMENT.items() if k != "NO_COLOR"} | {"TERM": "xterm"} | environment)
        os.close(side)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        while True:
            try:
                data = os.read(self.terminal, 1 << 16)
            except OSError:
                break
            if not data:
                break
            self.text += data.decode(errors="replace")

    def wait_for(self, condition, seconds=100):
        end = time.monotonic() + seconds
        while not condition(self.text):
            assert time.monotonic() < end and self.process.poll() is None, self.text
            time.sleep(0.02)

    def end(self):
        code = self.process.wait(timeout=110)
        self.reader.join()
        os.close(self.terminal)
        return code, self.text


def columns_of(line):
    return len(re.sub(r"\x1b\[\d*[mJK]", "", line))


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_bar_moves_on_a_terminal_of_eighty_columns(echelon, ranks):
    code, text = Watched(echelon, echelon.train_arguments("--nproc", ranks, train_steps=60, train_batch=8)).end()
    assert code == 0, text
    drawn = DRAWN.findall(text)
    assert len(drawn) >= 2 and all("━" in line for line in drawn), text
    assert "step 60/60" in drawn[-1]
    assert max(columns_of(line) for line in re.split(r"[\r\n]+", text)) <= 80, text


@pytest.mark.parametrize("ranks", [1, 2])
def test_without_colours_the_bar_shows_how_much_is_done(echelon, ranks):
    code, text = Watched(echelon, echelon.train_arguments("--nproc", ranks, train_steps=60, train_batch=8), NO_COLOR="1").end()
    assert code == 0, text
    assert not re.search(r"\x1b\[\d+m", text), text
    shares = [(line.count("━"), line.count("·"), *map(int, re.search(r"step +(\d+)/(\d+)", line).groups())) for line in DRAWN.findall(text)]
    assert shares[-1][1] == 0
    for full, rest, step, steps in shares:
        assert abs(full - (full + rest) * step / steps) <= 1, text


def test_the_bar_follows_the_width_of_the_terminal(echelon):
    job = Watched(echelon, echelon.train_arguments("--nproc", 2, train_steps=100000), columns=120)
    job.wait_for(lambda text: len(DRAWN.findall(text)) > 2)
    resize(job.terminal, 40)
    before = len(DRAWN.findall(job.text))
    job.wait_for(lambda text: len(DRAWN.findall(text)) > before + 4)
    job.process.terminate()
    _, text = job.end()
    drawn = DRAWN.findall(text)
    assert any(columns_of(line) > 60 for line in drawn[:before])
    assert all(columns_of(line) < 40 for line in drawn[before + 2:]), text


def test_progress_can_be_plain_or_left_out(echelon):
    for how, shown in (("plain", True), ("none", False)):
        code, text = Watched(echelon, echelon.train_arguments("--progress", how, train_steps=5)).end()
        assert code == 0, text
        assert "\x1b" not in text
        assert ("step 5/5" in text) == shown


def test_a_pipe_gets_plain_lines(echelon):
    for ranks in (1, 2):
        result = echelon.train("--nproc", ranks, train_steps=5)
        assert result.returncode == 0 and "step 5/5" in result.stdout
        assert "\x1b" not in result.stdout and "\r" not in result.stdout


def test_a_terminal_without_a_width_gets_plain_lines(echelon):
    """As mpirun gives one to each rank, whatever its own output goes to."""
    code, text = Watched(echelon, echelon.train_arguments(train_steps=5), columns=0).end()
    assert code == 0 and "step 5/5" in text
    assert "\x1b" not in text


def test_a_warning_does_not_stand_within_the_bar(echelon):
    """On a terminal, what is written to standard error clears the bar first."""
    code, text = Watched(echelon, echelon.train_arguments("--nproc", 2, train_steps=30, train_batch=8, optim_rate=1e30,
                                                          optim_clip=0)).end()
    assert code == 1, text
    assert "echelon: error: " in text
    for before in re.findall(r"([^\n]*)echelon: error: ", text):
        shown = re.split(r"\x1b\[J", before)[-1]
        assert columns_of(shown.rpartition("\r")[2] or "") == 0, repr(before)


def test_tables_fit_into_eighty_columns(echelon):
    for arguments in (["--nproc", 2], ["--dry-run"]):
        result = echelon.train(*arguments, train_steps=3, train_validate_every=2, model_context=16)
        assert result.returncode == 0, result.stdout + result.stderr
        assert max(map(len, result.stdout.splitlines())) <= 80, result.stdout
