"""Fine-tuning a DistilBERT on sentences of different lengths: Echelon and transformers, in alternating rounds of one run.

    ./dev bench finetune                    one process and two ranks, two shapes
    ./dev bench finetune --world 2          only two ranks: data parallel against DDP over Gloo
    ./dev bench finetune --save             also write docs/benchmarks/DATE-finetune.md

Both sides start from the same folder (random weights), read the same TSV file of sentences and train all parameters with
AdamW (fused in PyTorch), clipped gradients and dropout 0.1, but not of attention weights, which Echelon does not drop.
Words are random; the number of words in a sentence follows that of SST-2's training set (mean 9.4, most often 1 to 5, at
most 52). A batch is padded to its longest sample, rounded up to a multiple of 8. 'sorted' puts samples of similar length
together in both systems: batches are cut from runs of 64 batches that are sorted by length. PyTorch's texts are encoded
before the time starts. Times are means over the steps after the first five, because steps differ in length.
"""

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from _page import BUILD, machine, plain, save

WORDS, BATCH, LABELS, WARM = 4000, 32, 2, 5
RUN = 64  # batches that are sorted together


@dataclass(frozen=True)
class Shape:
    layers: int
    width: int
    heads: int
    vocab: int
    context: int
    steps: int

    def __str__(self):
        return f"L={self.layers} d={self.width} h={self.heads} V={self.vocab}, batch {BATCH}"


SHAPES = [Shape(3, 128, 4, 4096, 64, steps=192), Shape(6, 768, 12, 30522, 64, steps=13)]
ECHELON = {"Echelon, sorted": {}, "Echelon, not sorted": {"train.sort_batches": 1},
           "Echelon, all padded to 64": {"train.sort_batches": 1, "train.pad_to": 64}}
PEERS = {"PyTorch, sorted": {"sort": True}, "PyTorch, not sorted": {"sort": False}}


# ---- Data and model ------------------------------------------------------------------------------------


def words_of_a_sentence(choose):
    """Like the phrases of SST-2: many short ones and a long tail."""
    return max(1, min(52, round(choose.lognormvariate(1.86, 0.87))))


def write_data(path, count):
    choose = random.Random(1)
    lines = ["sentence\tlabel"]
    for _ in range(count):
        words = " ".join(f"w{choose.randrange(WORDS)}" for _ in range(words_of_a_sentence(choose)))
        lines.append(f"{words}\t{choose.randrange(LABELS)}")
    path.write_text("\n".join(lines) + "\n")


def write_model(folder, shape):
    import torch
    import transformers

    torch.manual_seed(1)
    config = transformers.DistilBertConfig(n_layers=shape.layers, dim=shape.width, n_heads=shape.heads,
                                           hidden_dim=4 * shape.width, vocab_size=shape.vocab, attention_dropout=0.0,
                                           max_position_embeddings=shape.context, dropout=0.1, seq_classif_dropout=0.1)
    transformers.DistilBertForSequenceClassification(config).save_pretrained(folder)
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(WORDS))]
    (folder / "vocab.txt").write_text("".join(token + "\n" for token in tokens))


# ---- PyTorch -------------------------------------------------------------------------------------------


def batches_of(lengths, sort, steps):
    """Sample numbers of each batch, an epoch after another."""
    import torch

    order, batches = torch.Generator().manual_seed(1), []
    while len(batches) < steps:
        samples = torch.randperm(len(lengths), generator=order).tolist()
        if sort:
            samples = [i for begin in range(0, len(samples), RUN * BATCH)
                       for i in sorted(samples[begin:begin + RUN * BATCH], key=lambda i: lengths[i])]
        epoch = [samples[i:i + BATCH] for i in range(0, len(samples) - BATCH + 1, BATCH)]
        batches += [epoch[i] for i in torch.randperm(len(epoch), generator=order).tolist()] if sort else epoch
    return batches[:steps]


def peer(folder, steps, threads, world, sort):
    import torch
    import torch.distributed as dist
    import transformers

    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    folder = Path(folder)
    rank = int(os.environ["RANK"])
    if world > 1:
        dist.init_process_group("gloo")
    model = transformers.DistilBertForSequenceClassification.from_pretrained(folder / "model", attn_implementation="sdpa")
    run = torch.nn.parallel.DistributedDataParallel(model) if world > 1 else model
    run.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, fused=True)
    tokens = {token: i for i, token in enumerate((folder / "model/vocab.txt").read_text().splitlines())}
    rows = [line.split("\t") for line in (folder / "train.tsv").read_text().splitlines()[1:]]
    ids = [[2, *(tokens[word] for word in text.split()), 3] for text, _ in rows]
    labels = torch.tensor([int(label) for _, label in rows])
    seconds, used, computed = [], 0, 0
    for samples in batches_of([len(one) for one in ids], sort, steps):
        mine = samples[rank::world]
        length = -(-max(len(ids[i]) for i in mine) // 8) * 8
        batch = torch.zeros(len(mine), length, dtype=torch.long)
        mask = torch.zeros(len(mine), length, dtype=torch.long)
        for row, i in enumerate(mine):
            batch[row, :len(ids[i])] = torch.tensor(ids[i])
            mask[row, :len(ids[i])] = 1
        start = time.perf_counter()
        run(input_ids=batch, attention_mask=mask, labels=labels[mine]).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start)
        used, computed = used + int(mask.sum()), computed + mask.numel()
    if world > 1:
        dist.destroy_process_group()
    return {"step_ms": 1e3 * statistics.fmean(seconds[WARM:]), "padding": 1 - used / computed}


def measure_peer(folder, shape, threads, world, settings):
    given = {"folder": str(folder), "steps": shape.steps, "threads": threads, "world": world, **settings}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {**os.environ, "OMP_NUM_THREADS": str(threads), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
              "WORLD_SIZE": str(world)}
    ranks = [subprocess.Popen([sys.executable, __file__, "--peer", json.dumps(given)], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, env={**shared, "RANK": str(rank)})
             for rank in range(world)]
    said = [rank.communicate(timeout=900) for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit(f"PyTorch failed: {said[0][1][-2000:]}")
    return json.loads(said[0][0].splitlines()[-1])


# ---- Echelon -------------------------------------------------------------------------------------------


def measure_echelon(folder, shape, threads, world, settings):
    values = {"model.init": folder / "model", "data.source": folder / "train.tsv",
              "train.steps": shape.steps, "train.batch": BATCH, "train.threads": threads, "train.validate_every": 0,
              "train.validate_samples": 1, "train.save_last": "false", "model.dropout": 0.1, "optim.rate": 5e-5,
              "optim.clip": 1.0, "optim.decay": 0.01, **settings}
    with tempfile.TemporaryDirectory() as work:
        command = [str(BUILD / "echelon"), "train", "--name", "job", "--nproc", str(world)]
        for key, value in values.items():
            command += ["--set", f"{key}={value}"]
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=900,
                              env={**os.environ, "OMP_NUM_THREADS": str(threads)})
        if done.returncode:
            sys.exit(f"echelon failed: {done.stderr}")
        lines = [json.loads(line) for line in (Path(work) / "runs/job/times.jsonl").read_text().splitlines()]
    return {"step_ms": statistics.fmean(line["step_ms"] for line in lines[WARM:]),
            "data_ms": statistics.fmean(line["data_ms"] for line in lines[WARM:])}


# ------------------------------------------------------------------------------------------------------


def measure(shape, world, rounds):
    """{variant: a result for each round}"""
    threads = max(1, len(os.sched_getaffinity(0)) // world)
    variants = {name: (measure_peer, settings) for name, settings in PEERS.items()}
    variants |= {name: (measure_echelon, settings) for name, settings in ECHELON.items()}
    results = {name: [] for name in variants}
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        write_model(folder / "model", shape)
        write_data(folder / "train.tsv", BATCH * RUN * 4)
        for number in range(rounds):
            for name in list(variants) if number % 2 == 0 else reversed(variants):
                function, settings = variants[name]
                results[name].append(function(folder, shape, threads, world, settings))
                print(f"{shape}, world {world}, round {number + 1}/{rounds}: {name}: {results[name][-1]}",
                      file=sys.stderr, flush=True)
    return results


def rows_of(results):
    def times(name):
        return [one["step_ms"] for one in results[name]]

    rows = [["", "ms a step (mean)", "sentences/s", "padding", "times as fast as PyTorch, sorted", "waits for data"]]
    for name, rounds in results.items():
        step = statistics.median(times(name))
        ratio = statistics.median(theirs / ours for theirs, ours in zip(times("PyTorch, sorted"), times(name)))
        rows.append([name, f"{step:.1f} ({min(times(name)):.1f} to {max(times(name)):.1f})", f"{1e3 * BATCH / step:,.0f}",
                     f"{100 * rounds[0]['padding']:.0f} %" if "padding" in rounds[0] else "", f"{ratio:.2f}",
                     f"{statistics.median(one['data_ms'] for one in rounds):.2f} ms" if "data_ms" in rounds[0] else ""])
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--world", type=int, choices=[1, 2], help="only this number of ranks")
    parser.add_argument("--save", action="store_true", help="write a dated page in docs/benchmarks/")
    parser.add_argument("--peer", help=argparse.SUPPRESS)  # one measurement of PyTorch, in a separate process
    arguments = parser.parse_args()
    if arguments.peer:
        print(json.dumps(peer(**json.loads(arguments.peer))))
        return
    import transformers

    facts = [*machine(), ("transformers", transformers.__version__)]
    print("\n".join(f"{name:12} {value}" for name, value in facts), flush=True)
    tables = []
    for shape in SHAPES:
        for world in [arguments.world] if arguments.world else [1, 2]:
            heading = f"{shape}, {world} rank{'s' * (world > 1)}, {shape.steps} steps"
            tables.append((heading, rows_of(measure(shape, world, arguments.rounds))))
            print(f"\n{heading}\n{plain(tables[-1][1])}", flush=True)
    if arguments.save:
        save("finetune", "Fine-tuning on sentences of different lengths", facts, arguments.rounds, tables)


if __name__ == "__main__":
    main()
