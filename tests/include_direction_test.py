"""Includes go downward only, the lowest components know nothing of torch, and no header drags torch's umbrella in.
Nor does anything use the parts of std::filesystem that torch's wheels replace (see echelon/base/folder.h).

Run from anywhere: python3 include_direction_test.py [ROOT]
"""

import re
import sys
import tempfile
from pathlib import Path

# Bottom to top. A component may include itself and what stands before it. A folder of a component is part of it unless
# it is in this list too.
ORDER = ["kernels", "base", "data/records", "data/tokenizer", "data/corpus", "net", "launch", "collective", "comm",
         "data", "nn", "models", "optim", "step", "parallel", "plan", "train", "job", "verify", "lab", "cli"]
TORCH_FREE = {"kernels", "base", "data/records", "data/tokenizer", "data/corpus", "net", "launch", "collective"}
UMBRELLAS = {"torch/torch.h", "torch/all.h", "torch/extension.h"}

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
TORCH = re.compile(r"^(torch|ATen|c10)/")
REPLACED = re.compile(r"^(?!\s*//).*\b(?:fs|filesystem)::(remove_all|(?:recursive_)?directory_iterator|copy)\b")
SUFFIXES = {".h", ".hpp", ".cpp", ".cu", ".cuh"}


def files(root: Path):
    """Yields (component, file) for every source of the library and the command line."""
    for folder in (root / "echelon", root / "cli"):
        for file in sorted(folder.rglob("*")):
            if file.suffix in SUFFIXES:
                yield component_of(file.relative_to(root).as_posix()), file


def component_of(path: str):
    """The component of a path: "echelon/<component>/…" or "cli/…"; None for anything else."""
    folders = path.split("/")[:-1]
    if folders[:1] == ["cli"]:
        return "cli"
    if folders[:1] != ["echelon"] or len(folders) == 1:
        return None
    nested = "/".join(folders[1:3])
    return nested if nested in ORDER else folders[1]


def complaint(component: str, file: Path, path: str):
    """What is wrong with one include, or None."""
    if TORCH.match(path):
        if component in TORCH_FREE:
            return f"{component} is free of torch, but includes <{path}>"
        if path in UMBRELLAS and file.suffix != ".cpp":
            return f"a header includes torch's umbrella <{path}>: include what it needs"
        return None
    target = component_of(path)
    if target is None or target == component:
        return None
    if target not in ORDER:
        return f"'{target}' is not a component: add it to ORDER in {Path(__file__).name}"
    if ORDER.index(target) > ORDER.index(component):
        return f"{component} includes {target}, which stands above it"
    return None


def check(root: Path):
    """All complaints about the tree, each as 'file:line: what'."""
    found = []
    for component, file in files(root):
        name = file.relative_to(root)
        if component not in ORDER:
            found.append(f"{name}:1: '{component}' is not a component: add it to ORDER in {Path(__file__).name}")
            continue
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(line)
            what = match and complaint(component, file, match[1] or match[2])
            replaced = REPLACED.match(line)
            if replaced:
                what = f"std::filesystem::{replaced[1]} may be torch's: use echelon/base/folder.h"
            if what:
                found.append(f"{name}:{number}: {what}")
    return found


def self_check():
    """A test that cannot fail shows nothing: plant every violation and see that it is named."""
    planted = {
        "echelon/base/a.cpp": ('#include "echelon/nn/stack.h"', "base includes nn"),
        "echelon/base/b.h": ("#  include <c10/util/Exception.h>", "free of torch"),
        "echelon/data/c.h": ("#include <torch/torch.h>", "umbrella"),
        "echelon/nn/d.h": ('#include "echelon/helpers/x.h"', "'helpers' is not a component"),
        "echelon/misc/e.cpp": ("", "'misc' is not a component"),
        "echelon/kernels/cuda/f.cu": ('#include "echelon/base/error.h"', "kernels includes base"),
        "echelon/train/g.h": ('#include "cli/command.h"', "train includes cli"),
        "echelon/data/records/i.h": ('#include "echelon/data/text.h"', "data/records includes data"),
        "echelon/data/records/j.cpp": ("#include <ATen/core/Tensor.h>", "free of torch"),
        "echelon/net/k.cpp": ('#include "echelon/data/text.h"', "net includes data"),
        "echelon/data/h.cpp": ("  for (auto& e : fs::directory_iterator(root)) {", "may be torch's"),
    }
    allowed = {
        "echelon/nn/ok.h": '#include "echelon/base/error.h"\n#include "echelon/kernels/cpu/adamw.h"\n#include <ATen/core/Tensor.h>',
        "echelon/train/ok.cpp": "#include <torch/torch.h>",
        "echelon/data/ok.cpp": '#include "echelon/data/records/ok.h"',
        "echelon/data/records/ok.h": '#include "echelon/base/error.h"',
        "echelon/models/gpt2/ok.cpp": '#include "echelon/models/family.h"\n#include "echelon/data/records/ok.h"',
        "cli/ok.cpp": '#include "cli/command.h"\n#include "echelon/train/trainer.h"',
    }
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, text in {**{n: "\n" + t for n, (t, _) in planted.items()}, **allowed}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        found = check(root)
    for name, (_, expected) in planted.items():
        assert any(f.startswith(name + ":") and expected in f for f in found), f"{name} was not caught: {found}"
    assert len(found) == len(planted), found


def main():
    self_check()
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent).resolve()
    found = check(root)
    print("\n".join(found) or f"{sum(1 for _ in files(root))} files: every include goes downward")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
