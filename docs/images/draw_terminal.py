#!/usr/bin/env python3
"""Draws a terminal in which a command has run, as an SVG.

  docs/images/draw_terminal.py docs/images/train.svg -- ./dev train

The command runs in tmux (80 columns, with colours); the picture is its screen when it has ended. What the terminal
shows of a home folder or of this checkout is written as '~' and '.'.
"""

import argparse
import html
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CELL, LINE, MARGIN = 8.43, 19, 14  # of 14 px DejaVu Sans Mono
COLOURS = ["#1e1e1e", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#abb2bf"]
TEXT, DIM, PAPER = "#d7dae0", "#7f848e", "#1e2227"


def tmux(*arguments):
    return subprocess.run(["tmux", "-L", "draw", *arguments], check=True, capture_output=True, text=True).stdout


def screen(command, columns, rows, seconds):
    """The lines of a terminal after the command has ended, with their escapes."""
    with tempfile.TemporaryDirectory() as folder:
        done = Path(folder) / "done"
        tmux("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(rows), f"{command}; touch {done}; sleep 60")
        try:
            deadline = time.monotonic() + seconds
            while not done.exists():
                if time.monotonic() > deadline:
                    sys.exit(f"draw_terminal: '{command}' did not end within {seconds} s")
                time.sleep(0.2)
            time.sleep(0.3)
            return tmux("capture-pane", "-e", "-p").rstrip("\n").split("\n")
        finally:
            tmux("kill-server")


def runs(line):
    """Pieces of equal style: (text, colour, bold)."""
    colour, bold = TEXT, False
    for piece in re.split(r"(\x1b\[[0-9;]*m)", line):
        if not piece.startswith("\x1b["):
            if piece:
                yield piece, colour, bold
            continue
        for code in (int(c or 0) for c in piece[2:-1].split(";")):
            if code == 0:
                colour, bold = TEXT, False
            elif code == 1:
                bold = True
            elif code == 2:
                colour = DIM
            elif code == 22:
                bold, colour = False, TEXT
            elif code == 39:
                colour = TEXT
            elif 30 <= code < 38:
                colour = COLOURS[code - 30]
            elif 90 <= code < 98:
                colour = COLOURS[code - 90]


def svg(lines, title, columns):
    width, top = columns * CELL + 2 * MARGIN, 34
    height = top + len(lines) * LINE + MARGIN
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="14">',
        f'<rect width="{width:.0f}" height="{height:.0f}" rx="8" fill="{PAPER}"/>',
    ]
    for i, colour in enumerate(("#ff5f57", "#febc2e", "#28c840")):
        out.append(f'<circle cx="{20 + 18 * i}" cy="17" r="5.5" fill="{colour}"/>')
    out.append(f'<text x="{width / 2:.0f}" y="22" fill="{DIM}" text-anchor="middle">{html.escape(title)}</text>')
    for row, line in enumerate(lines):
        column = 0
        for text, colour, bold in runs(line):
            if text.strip():
                start = len(text) - len(text.lstrip(" "))
                shown = text.strip(" ")
                x, y = MARGIN + (column + start) * CELL, top + (row + 0.8) * LINE
                weight = ' font-weight="bold"' if bold else ""
                out.append(
                    f'<text x="{x:.1f}" y="{y:.1f}" textLength="{len(shown) * CELL:.1f}" fill="{colour}"{weight} '
                    f'xml:space="preserve">{html.escape(shown)}</text>'
                )
            column += len(text)
    return "\n".join([*out, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--columns", type=int, default=80)
    parser.add_argument("--rows", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=600, help="how long the command may take")
    parser.add_argument("command", nargs="+", help="after --")
    arguments = parser.parse_args()
    command = shlex.join(arguments.command)
    lines = screen(command, arguments.columns, arguments.rows, arguments.seconds)
    here, home = str(Path.cwd()), str(Path.home())
    lines = [line.rstrip().replace(here + "/", "").replace(here, ".").replace(home, "~") for line in lines]
    while lines and not lines[-1]:
        lines.pop()
    arguments.picture.write_text(svg(lines, command, arguments.columns))
    print(f"{arguments.picture}: {len(lines)} lines")


main()
