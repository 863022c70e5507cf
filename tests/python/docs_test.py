"""What the documents promise is there: links and file names lead somewhere, and the option reference is the program's own."""

import re
import subprocess
from pathlib import Path

import pytest
from conftest import BUILD

ROOT = Path(__file__).resolve().parents[2]
ECHELON = BUILD / "echelon"
PAGES = [path for path in ROOT.rglob("*.md") if not {"build", ".venv", "deps", "runs"} & set(path.relative_to(ROOT).parts)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_somewhere(page):
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    links = re.findall(r"\]\(([^)#]+)\)", prose)
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")], ids=lambda page: page.name)
def test_every_source_that_a_page_names_exists(page):
    """Names as in `echelon/nn/stack.h`, `nn/stack.h`, `stack.h` or `nn/`; NAME stands for one of the reader's own."""
    names = set(re.findall(r"`([\w./-]+(?:\.h|\.cpp|\.py|/))`", page.read_text()))
    sources = subprocess.run(["git", "-C", ROOT, "ls-files"], capture_output=True, text=True, check=True).stdout.splitlines()

    def exists(name):
        return any(f"/{source}".endswith(f"/{name}") or (name.endswith("/") and f"/{name}" in f"/{source}") for source in sources)

    # runs/NAME/, weights/ and best/ are written by the program, build/ and deps/ by ./dev.
    written = re.compile(r"runs/|weights/|best/|build|deps/")
    assert [name for name in sorted(names) if "NAME" not in name and not written.match(name) and not exists(name)] == []


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")], ids=lambda page: page.name)
def test_prose_is_narrow_enough_to_read(page):
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    assert [line for line in prose.splitlines() if len(line) > 120 and not line.startswith("|")] == []


def test_the_option_reference_is_what_the_program_prints():
    printed = subprocess.run([ECHELON, "info", "--options"], capture_output=True, text=True, check=True, timeout=60).stdout
    assert (ROOT / "docs" / "configuration.md").read_text() == printed, (
        "write it anew: build/echelon info --options > docs/configuration.md")


def test_the_readme_shows_commands_that_exist():
    text = (ROOT / "README.md").read_text()
    commands = set(re.findall(r"build/echelon (\w+)", text))
    help_text = subprocess.run([ECHELON, "--help"], capture_output=True, text=True, check=True, timeout=60).stdout
    assert commands and all(re.search(rf"^\s+{command}\s", help_text, re.M) for command in commands), commands
