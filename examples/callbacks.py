"""Callbacks: early stopping, and text from each checkpoint. A job names them in its [run] section:

callbacks = ["callbacks:stop_when_it_stays", "callbacks:sample"]
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import planaria
from planaria import records

PATIENCE = 3
"""Evaluations without a better one, after which a run is stopped."""

since_best = 0


def stop_when_it_stays(record: records.Record, run: planaria.LiveRun) -> None:
    """Stops the run when several evaluations in a row were no better than an earlier one."""
    global since_best
    if isinstance(record, records.Evaluated):
        since_best = 0 if record.is_best else since_best + 1
        if since_best == PATIENCE:
            run.stop(f"the last {PATIENCE} evaluations were no better than the one before them")


def sample(record: records.Record, run: planaria.LiveRun) -> None:
    """Adds what the model writes to samples.txt in the run folder, at each checkpoint."""
    if not isinstance(record, records.CheckpointSaved) or not Path(record.folder).exists():
        return  # newer ones have taken its place, where this takes longer than to train on
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # they would come between the run's lines
    with tempfile.TemporaryDirectory() as folder:
        planaria.export(run.folder, folder, step=record.step)
        model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer("def ", return_tensors="pt", add_special_tokens=False)
    written = model.generate(**prompt, max_length=min(64, tokenizer.model_max_length), do_sample=False)
    with (run.folder / "samples.txt").open("a") as file:
        print(f"step {record.step}: {tokenizer.decode(written[0])!r}", file=file)
