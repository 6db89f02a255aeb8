"""Makes a folder of files in every format that is to stay readable: `python tests/compat/make.py FOLDER`.

Run it with the code of a version before a format changes, and commit what it made beside the older ones: `test_compat`
reads every folder here. Never make an old one again: then it would be of the newer code.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from pathlib import Path

from planaria import load_job, train
from planaria.job.registry import PolicyName
from planaria.protocol.messages.journal import JournalEnd, JournalPolicy, JournalStop
from planaria.runtime.journal.sqlite_journal import SqliteJournal

JOB = """
[model]
type = "gpt2"
config = { n_layer = 2, n_embd = 4, n_head = 2, n_positions = 8 }

[data]
source = "corpus.txt"
tokenizer = "bytes"
mask_probability = 0.2

[train]
steps = 8
global_batch = 4
microbatch = 1
sequence_length = 8
learning_rate = 1e-2
lr_schedule = "linear"
warmup_steps = 2
min_lr_ratio = 0.2
betas = [0.9, 0.99]
eps = 1e-7
weight_decay = 0.01
clip_norm = 0.5
seed = 5
dtype = "float32"
activation_checkpointing = false
numerics = "exact"
when_not_finite = "skip"

[cluster]
nodes = 3
devices_per_node = 1
device = "cpu"
memory_gb = 1.0
storage_gb_per_s = 2.0
schedule = "1f1b"
zones = ["a", "b", "c"]
most_workers = 8

[resilience]
fault_tolerance = 1
policy = "adaptive"
redundancy = "lazy-lazy"
allow_drop = false
mean_time_between_failures_s = 7200.0
when_exhausted = "wait"
min_nodes_per_pipeline = 1
heartbeat_timeout_s = 5.0
coordinator_timeout_s = 30.0
preemption = "none"

[run]
folder = "."
name = "run"
checkpoint_every = 4
keep_checkpoints = 2
"""

KEPT = ("job.json", "events.jsonl", "metrics.jsonl", "summary.json", "profile.json", "checkpoints", "data/tokens.json")


def main(folder: Path) -> None:
    """Trains a small job through the losses of a node and of the coordinator, and keeps what it left behind."""
    folder.mkdir()
    os.chdir(folder)
    Path("job.toml").write_text(JOB.lstrip())
    Path("corpus.txt").write_text("".join(f"{n} worms were cut into {2 * n}.\n" for n in range(40)))
    result = train(load_job("job.toml"), faults=["kill:node=2,step=2,at=backward", "coordinator:step=3,at=commit"])
    assert result.status.value == "completed", result
    made = result.folder.rename("made")
    for name in KEPT:
        target = Path("run", name)
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (made / name).is_dir() else shutil.copy)(made / name, target)
    _copy_journal(made / "journal.sqlite", Path("run", "journal.sqlite"))
    shutil.rmtree(made)


def _copy_journal(made: Path, target: Path) -> None:
    """The run's journal, with the entries of a change of policy and of a stop before its end."""
    database = sqlite3.connect(made)
    ((job,),) = database.execute("SELECT fingerprint FROM job")
    run = database.execute("SELECT run FROM entries ORDER BY number DESC").fetchone()[0]
    database.close()
    before, after = SqliteJournal(made, run, job), SqliteJournal(target, run, job)
    before.start()
    after.start()
    for entry in before.read():
        if isinstance(entry, JournalEnd):
            after.write(JournalPolicy(policy=PolicyName.TEMPLATES))
            after.write(JournalStop())
        after.write(entry)
    before.close()
    after.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
