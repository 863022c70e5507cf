"""Speed of our tokenisers beside Hugging Face's `tokenizers`, on the same files and texts.

    ./dev bench tokenizer                       text of Python's standard library, about 2 MB
    ./dev bench tokenizer --text FILE           another text, such as tinyshakespeare.txt
    ./dev bench tokenizer --save                also write docs/benchmarks/DATE-tokenizer.md

A text is cut into paragraphs of about 400 bytes. Tokenisers of 8192 tokens are trained on it by `tokenizers`, and
saved; the ids of 500 paragraphs are compared. Rounds alternate: encode_batch, and encode_batch_fast, which finds no
offsets, of `tokenizers` (RAYON_NUM_THREADS=1), then encode_all without spans on one thread, on two and so on. Each has
encoded the text once before it is timed, so its cache of words is full.
"""

import argparse
import json
import os
import statistics
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "true"

from _page import ROOT, machine, plain, save  # noqa: E402

sys.path.insert(0, str(ROOT / "tests" / "python"))
import tokenizers  # noqa: E402
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers  # noqa: E402

import _tokenizers as suite  # noqa: E402

VOCABULARY = 8192


def default_text():
    parts = [p.read_text("utf-8") for p in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))]
    return "".join(parts)[:2_000_000]


def paragraphs(text):
    found, now = [], []
    size = 0
    for line in text.splitlines(keepends=True):
        now.append(line)
        size += len(line)
        if size > 400:
            found.append("".join(now))
            now, size = [], 0
    return found + (["".join(now)] if now else [])


def trained(name, texts):
    """BERT's, GPT-2's or Llama 3's kind of tokeniser."""
    if name == "BERT":
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        special = ["[UNK]", "[CLS]", "[SEP]"]
        trainer = trainers.WordPieceTrainer(vocab_size=VOCABULARY, special_tokens=special, show_progress=False)
        tokenizer.train_from_iterator(texts, trainer)
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
        return tokenizer
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name == "Llama 3":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(suite.LLAMA3), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<|end|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    if name == "Llama 3":
        tokenizer.model.ignore_merges = True
    return tokenizer


class Ours:
    """The oracle, which encodes twice: the first time fills its cache of words."""

    def __init__(self, path, texts):
        self.path, self.data = path, suite.framed(texts)

    def seconds(self, threads):
        out = suite.run(self.path, "time", threads, 2, data=self.data)
        return json.loads(out.splitlines()[1])["seconds"]


def timed(function, *arguments):
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def measure(path, texts, threads, rounds):
    """{what: seconds of each round}"""
    theirs, ours = Tokenizer.from_file(str(path)), Ours(path, texts)
    suite.compare(path, theirs, texts[:500])
    seconds = {"encode_batch": [], "encode_batch_fast": []} | {n: [] for n in threads}
    theirs.encode_batch(texts)
    for _ in range(rounds):
        seconds["encode_batch"].append(timed(theirs.encode_batch, texts))
        seconds["encode_batch_fast"].append(timed(theirs.encode_batch_fast, texts))
        for count in threads:
            seconds[count].append(ours.seconds(count))
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="a text in UTF-8")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", default=",".join(str(n) for n in (1, 2, 4, 8, 16) if n <= os.cpu_count()))
    parser.add_argument("--save", action="store_true", help="write a dated page in docs/benchmarks/")
    arguments = parser.parse_args()
    if "1" not in arguments.threads.split(","):
        sys.exit("--threads must have 1: the ratios are of one thread")
    threads = [int(n) for n in arguments.threads.split(",")]
    text = arguments.text.read_text("utf-8") if arguments.text else default_text()
    texts = paragraphs(text)
    megabytes = len(text.encode()) / 1e6
    facts = machine(program=ROOT / "none") if not (suite.BUILD / "echelon").exists() else machine()
    source = arguments.text.name if arguments.text else "Python's standard library"
    facts += [("tokenizers", tokenizers.__version__),
              ("Text", f"{source}, {megabytes:.2f} MB in {len(texts)} paragraphs")]
    print("\n".join(f"{name:12} {value}" for name, value in facts), flush=True)
    rows = [["tokeniser", "encode_batch", "encode_batch_fast",
             *(f"Echelon, {n} thread{'s' * (n > 1)}" for n in threads), "ratio to encode_batch", "ratio to encode_batch_fast"]]
    with tempfile.TemporaryDirectory() as folder:
        for name in ("BERT", "GPT-2", "Llama 3"):
            path = Path(folder) / f"{name}.json"
            trained(name, texts).save(str(path))
            seconds = measure(path, texts, threads, arguments.rounds)
            medians = {what: statistics.median(values) for what, values in seconds.items()}
            ratios = [f"{medians[what] / medians[1]:.1f}" for what in ("encode_batch", "encode_batch_fast")]
            rows.append([name, *(f"{megabytes / value:.2f}" for value in medians.values()), *ratios])
            print(rows[-1], flush=True)
    heading = "MB/s on one thread, and on several (Echelon)"
    print(f"\n{heading}\n{plain(rows)}")
    if arguments.save:
        save("tokenizer", "Tokenisers", facts, arguments.rounds, [(heading, rows)])


if __name__ == "__main__":
    main()
