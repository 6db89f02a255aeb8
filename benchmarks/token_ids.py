"""How fast texts become token ids, beside `datasets.map` with the same tokenizer, in turns; and in how much memory.

    python benchmarks/token_ids.py [--megabytes 150] [--turns 2]

Texts are Python's standard library, over and over in another order, as rows of JSON; the tokenizer has byte pairs
learned from them. `datasets` is timed for its map alone, not for reading the rows into its own tables; Planaria for all
that it does. Processor time is of all processes of a side, start and reading of rows left out, and holds under load as
seconds do not. Memory is the most that the processes of a side have at a time (PSS). Needs `pip install datasets`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from figures import SCRATCH

from planaria.data.tokens.preparation import prepare_tokens
from planaria.job.sections.data import DataSection

PROCESSES = 2
VOCABULARY = 8000
ROW_BYTES = 2000
LOOKED_EVERY_S = 0.05


def texts(num_bytes: int) -> Iterator[str]:
    """Yields rows of text."""
    from planaria.data.reading.python_stdlib import source_files

    wholes = [file.read_text(errors="replace") for file in sorted(source_files())]
    chance = random.Random(0)
    while num_bytes > 0:
        chance.shuffle(wholes)
        for whole in wholes:
            for start in range(0, len(whole), ROW_BYTES):
                yield whole[start : start + ROW_BYTES]
                num_bytes -= ROW_BYTES
                if num_bytes <= 0:
                    return


def make(source: Path, num_bytes: int) -> None:
    source.parent.mkdir(parents=True, exist_ok=True)
    with source.open("w") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts(num_bytes))


def train_tokenizer(tokenizer: Path, vocabulary: int, num_bytes: int, special: Sequence[str] = ()) -> None:
    """Writes a tokenizer with byte pairs of so much text, of so many entries."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(special),
        show_progress=False,
    )
    made.train_from_iterator(texts(num_bytes), trainer)
    made.save(str(tokenizer))


@dataclass(frozen=True, slots=True)
class Took:
    """What a side took.

    Attributes:
        seconds: by the clock.
        cpu_s: of all its processes on all cores.
    """

    seconds: float
    cpu_s: float

    @classmethod
    def until_now(cls) -> Took:
        """Returns what this process, and those below it that ended, have taken so far."""
        spent = os.times()
        return cls(time.perf_counter(), spent.user + spent.system + spent.children_user + spent.children_system)

    def __sub__(self, other: Took) -> Took:
        return Took(self.seconds - other.seconds, self.cpu_s - other.cpu_s)


def ours(source: Path, tokenizer: Path, folder: Path) -> Took:
    """Returns what Planaria takes."""
    began = Took.until_now()
    prepare_tokens(DataSection(source=str(source), tokenizer=str(tokenizer), eos=False), folder)
    return Took.until_now() - began


def theirs(source: Path, tokenizer: Path, folder: Path) -> Took:
    """Returns what the map of `datasets` takes."""
    from datasets import load_dataset
    from transformers import PreTrainedTokenizerFast

    rows = load_dataset("json", data_files=str(source), split="train", cache_dir=str(folder))
    encode = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer))
    began = Took.until_now()
    rows.map(
        lambda batch: {"input_ids": encode(batch["text"])["input_ids"]},
        batched=True,
        num_proc=PROCESSES,
        remove_columns=["text"],
    )
    return Took.until_now() - began


SIDES = {"planaria": ours, "datasets.map": theirs}


def memory_bytes(root: int) -> int:
    """Returns the memory of a process and all below it, what they share counted once."""
    total, waiting = 0, [root]
    while waiting:
        pid = waiting.pop()
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += 1024 * sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
            for task in Path(f"/proc/{pid}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except OSError:
            continue  # it has ended
    return total


def measured(side: str, source: Path, tokenizer: Path) -> tuple[Took, int]:
    """Runs a side in a process of its own; returns what it took, and its memory at most."""
    folder = SCRATCH / "token_ids" / "out"
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, __file__, "--side", side, str(source), str(tokenizer), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        most = 0
        while process.poll() is None:
            most = max(most, memory_bytes(process.pid))
            time.sleep(LOOKED_EVERY_S)
        assert process.stdout is not None
        said = process.stdout.read().split()
    assert process.returncode == 0, f"{side} failed"
    return Took(float(said[-2]), float(said[-1])), most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=150, help="of text (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=2, help="of each side (default: %(default)s)")
    parser.add_argument("--side", nargs=4, metavar=("SIDE", "SOURCE", "TOKENIZER", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        side, *paths = given.side
        took_here = SIDES[side](*map(Path, paths))
        print(took_here.seconds, took_here.cpu_s)
        return
    source, tokenizer = SCRATCH / "token_ids" / "rows.jsonl", SCRATCH / "token_ids" / "tokenizer.json"
    make(source, given.megabytes * 1_000_000)
    train_tokenizer(tokenizer, VOCABULARY, 10_000_000)
    took: dict[str, list[Took]] = {side: [] for side in SIDES}
    most = dict.fromkeys(SIDES, 0)
    loads = [os.getloadavg()[0]]
    for _ in range(given.turns):
        for side in SIDES:
            one, memory = measured(side, source, tokenizer)
            took[side].append(one)
            most[side] = max(most[side], memory)
            loads.append(os.getloadavg()[0])
    print(f"{given.megabytes} MB, {os.cpu_count()} cores, load {min(loads):.1f} to {max(loads):.1f}")
    for side, all_of in took.items():
        rate = given.megabytes / statistics.median(one.seconds for one in all_of)
        of_cpu = given.megabytes / statistics.median(one.cpu_s for one in all_of)
        memory_mb = most[side] / 1e6
        print(f"{side:13} {rate:6.2f} MB/s, {of_cpu:6.2f} MB a processor second, {memory_mb:6.0f} MB of memory at most")
    for what in ("seconds", "cpu_s"):
        ratios = [getattr(b, what) / getattr(a, what) for a, b in zip(*took.values(), strict=True)]
        print(f"planaria is so many times as fast, turn by turn ({what}):", ", ".join(f"{one:.2f}" for one in ratios))


if __name__ == "__main__":
    main()
