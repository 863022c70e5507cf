"""Training a BPE and writing a corpus: speed beside Hugging Face's tokenizers, and memory for little and much text.

    ./dev bench corpus              on the sources of Python's standard library
    ./dev bench corpus --save       also write docs/benchmarks/DATE-corpus.md

The times of Echelon are those of the whole program, from its start to the renamed folder, with 1 and 2 threads. Those of
tokenizers are of the calls train() and encode_batch() in this process, with as many threads (RAYON_NUM_THREADS of a
process of its own); nothing is written. Both trainers must give the same merges, and both encoders the same number of
tokens, or the benchmark ends with an error. Long texts are the same sources several times.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from _page import BUILD, machine, plain, save

STDLIB = Path(sysconfig.get_path("stdlib"))
ECHELON = str(BUILD / "echelon")
LIMIT = 600

# What tokenizers does, in a process that has as many threads as RAYON_NUM_THREADS says.
TRAIN = """
import json, sys, time
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
files, vocab, out = json.load(open(sys.argv[1])), int(sys.argv[2]), sys.argv[3]
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=["<|endoftext|>"], show_progress=False,
                              initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
start = time.perf_counter()
tokenizer.train(files, trainer)
print(time.perf_counter() - start)
tokenizer.save(out)
"""
ENCODE = """
import json, sys, time
from tokenizers import Tokenizer
texts = [open(file, encoding="utf-8", newline="").read() for file in json.load(open(sys.argv[1]))] * int(sys.argv[3])
tokenizer = Tokenizer.from_file(sys.argv[2])
start = time.perf_counter()
tokens = sum(len(encoding.ids) for encoding in tokenizer.encode_batch(texts, add_special_tokens=False))
print(time.perf_counter() - start, tokens)
"""


def ours(*arguments):
    """Seconds and largest resident memory (MiB) of the program."""
    start = time.perf_counter()
    process = subprocess.Popen([ECHELON, *map(str, arguments)], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"echelon {' '.join(map(str, arguments))} failed")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def theirs(script, threads, *arguments):
    result = subprocess.run([sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True, timeout=LIMIT,
                            env=os.environ | {"RAYON_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "true"})
    if result.returncode:
        sys.exit(result.stderr)
    return [float(word) for word in result.stdout.split()]


def merges(path):
    return json.loads(path.read_text())["model"]["merges"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--copies", default="1,10,40", help="how often the sources are in the texts whose memory is measured")
    parser.add_argument("--save", action="store_true", help="write a dated page in docs/benchmarks/")
    arguments = parser.parse_args()
    import tokenizers

    facts = machine() + [("tokenizers", tokenizers.__version__)]
    print("\n".join(f"{name:12} {value}" for name, value in facts), flush=True)
    files = [str(file) for file in sorted(STDLIB.rglob("*.py")) if not {"test", "tests", "site-packages", "dist-packages"} & set(file.parts)
             and b"\xff" not in file.read_bytes() and utf8(file)]
    size = sum(os.path.getsize(file) for file in files) / 1e6
    tables = []

    def show(heading, rows):
        print(f"\n{heading}\n{plain(rows)}", flush=True)
        tables.append((heading, rows))

    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        listed = folder / "files.json"
        listed.write_text(json.dumps(files))
        rows = [["vocabulary", "threads", "s, Echelon", "s, tokenizers", "times as fast"]]
        for vocab in (8192, 32768):
            for threads in (1, 2):
                both = ([], [])
                for _ in range(arguments.rounds):
                    both[0].append(ours("tokenize", "train", *files, "--vocab", vocab, "--threads", threads, "-o",
                                        folder / f"bpe{vocab}", "--force")[0])
                    both[1].append(theirs(TRAIN, threads, listed, vocab, folder / "theirs.json")[0])
                if merges(folder / f"bpe{vocab}" / "tokenizer.json") != merges(folder / "theirs.json"):
                    sys.exit("the merges differ")
                mine, other = map(statistics.median, both)
                rows.append([str(vocab), str(threads), f"{mine:.2f}", f"{other:.2f}", f"{other / mine:.1f}"])
        show(f"Training a BPE on {size:.1f} MB in {len(files)} files", rows)

        tokenizer = folder / "bpe8192"
        rows = [["threads", "MB/s, Echelon", "MB/s, tokenizers", "times as fast"]]
        for threads in (1, 2):
            both = ([], [])
            for _ in range(arguments.rounds):
                both[0].append(ours("tokenize", "corpus", *files * 4, "--tokenizer", tokenizer, "--threads", threads, "-o",
                                    folder / "corpus", "--force")[0])
                seconds, tokens = theirs(ENCODE, threads, listed, tokenizer / "tokenizer.json", 4)
                both[1].append(seconds)
            if json.loads((folder / "corpus" / "corpus.json").read_text())["tokens"] != tokens:
                sys.exit("the numbers of tokens differ")
            mine, other = (4 * size / statistics.median(seconds) for seconds in both)
            rows.append([str(threads), f"{mine:.1f}", f"{other:.1f}", f"{mine / other:.1f}"])
        show(f"Encoding {4 * size:.1f} MB in {4 * len(files)} files: Echelon reads and writes, tokenizers has the text in memory", rows)

        rows = [["text", "MB", "MiB of memory at most"]]
        rows.append(["none: echelon version", "0", f"{ours('version')[1]:.0f}"])
        whole = b"".join(Path(file).read_bytes() for file in files)
        for copies in map(int, arguments.copies.split(",")):
            text = folder / "long.txt"
            with open(text, "wb") as out:
                for _ in range(copies):
                    out.write(whole)
            _, memory = ours("tokenize", "corpus", text, "--tokenizer", tokenizer, "--threads", 2, "-o", folder / "corpus", "--force")
            rows.append([f"one document, the sources {copies} times", f"{os.path.getsize(text) / 1e6:.0f}", f"{memory:.0f}"])
        show("Resident memory of the whole program while it writes a corpus, 2 threads", rows)
    if arguments.save:
        save("corpus", "BPE training and corpora", facts, arguments.rounds, tables)


def utf8(file):
    try:
        Path(file).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False
    return True


if __name__ == "__main__":
    main()
