"""A real run's folder as a history, and what its files say of each other."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import statistics
import zlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from tests.testkit.witness.history import History, Job, Plain
from tests.testkit.witness.plan_updates import whole
from tests.testkit.witness.rules import Finding, Rule
from tests.testkit.witness.witness import Witness

TAP = ".tap"
"""File in a run folder with what its coordinators wrote and heard, in order, where a test had that written down."""

MANIFEST = "manifest.json"
PARAMETER = "parameter/"
"""Beginning of the names of weights in a checkpoint's files; the others are the optimizer's."""


def judge_folder(folder: Path) -> list[Finding]:
    """Returns what a run's folder breaks. A run that did not tell its end is not judged by it."""
    history = history_of(folder)
    witness = Witness(Job(**history[0][1]), knows_faults=False)
    for entry in history[1:]:
        witness.take(entry)
    witness.told.ended()
    records = _lines(folder / "events.jsonl")
    found = [*witness.findings, *_judge_metrics(folder, records), *_judge_checkpoints(folder, records, witness)]
    if records and records[-1]["event"] == "run_ended" and (folder / "summary.json").is_file():
        found += _judge_summary(folder, records, witness)
    return found


def history_of(folder: Path) -> History:
    """Returns the history of a run's folder: its job, its journal, and what users were told."""
    settings, records = json.loads((folder / "job.json").read_text()), _lines(folder / "events.jsonl")
    heard = _heard(folder / TAP)
    entries = heard or [("journal", entry) for entry in journal_of(folder / "journal.sqlite")]
    plans = [entry[1] for entry in entries if entry[0] == "journal" and entry[1]["type"] == "plan"]
    starts = [record for record in records if record["event"] == "plan_taken" and record["purpose"] == "start"]
    train = settings["train"]
    job = Job(
        steps=train["steps"],
        microbatches=train["global_batch"] // train["microbatch"],
        tokens=train["microbatch"] * max(1, train["sequence_length"]),
        done=_first_step(entries, plans, starts) - 1,
        devices_per_node=settings["cluster"]["devices_per_node"],
        fault_tolerance=settings["resilience"]["fault_tolerance"],
        may_resume=len(starts) > 1 or sum(record["event"] == "run_ended" for record in records) > 1,
        is_whole=not _is_thinned(entries),
        has_votes=bool(heard),
    )
    told: History = [("told", record) for record in records]
    last = _last_part(records)
    return [("job", asdict(job)), *told[:last], *entries, *told[last:]]


def _is_thinned(entries: History) -> bool:
    """Returns whether one entry of the journal stands for others before it."""
    return any(entry[0] == "journal" and entry[1]["type"] == "past" for entry in entries)


def _first_step(entries: History, plans: list[Plain], starts: list[Plain]) -> int:
    if _is_thinned(entries):
        return int(starts[-1]["step"])
    return int(plans[0]["message"]["step"]) if plans else 1


def _last_part(records: list[Plain]) -> int:
    """Returns where the part of the run begins that the journal is of: after the end of the one before, or, where that
    was not told, where nodes join anew."""
    begin, has_plan = 0, False
    for at, record in enumerate(records):
        is_anew = has_plan and record["event"] == "node_joined" and record["live_nodes"] == 1
        if is_anew or (at and records[at - 1]["event"] == "run_ended"):
            begin, has_plan = at, False
        has_plan |= record["event"] == "plan_taken"
    return begin


def tapped(path: Path) -> list[list[Any]]:
    """Returns what a tap wrote, each with its length in four bytes before it; the last may be cut short."""
    data, found = path.read_bytes() if path.is_file() else b"", []
    while len(data) >= 4 and len(data) >= (end := 4 + int.from_bytes(data[:4], "little")):
        found.append(msgspec.msgpack.decode(data[4:end]))
        data = data[end:]
    return found


def _heard(path: Path) -> History:
    """Returns what a tap wrote, as entries of a history."""
    return [("journal", plain_entry(entry[1])) if entry[0] == "journal" else entry for entry in tapped(path)[1:]]


def journal_of(path: Path) -> list[Plain]:
    """Returns the entries of a journal, plans whole, if there is one; of a copy, as even a reader writes beside it."""
    if not path.is_file():
        return []
    with TemporaryDirectory() as copies:
        for file in path.parent.glob(f"{path.name}*"):
            shutil.copy(file, copies)
        database = sqlite3.connect(Path(copies) / path.name)
        try:
            rows = list(database.execute("SELECT entry FROM entries ORDER BY number"))
        finally:
            database.close()
    return whole(plain_entry(body) for (body,) in rows)


def plain_entry(body: bytes) -> Plain:
    """Returns an entry of a journal; of one that stands for others, with what it says of them."""
    entry: Plain = msgspec.msgpack.decode(body)
    if entry["type"] == "past":
        entry["rest"] = msgspec.msgpack.decode(zlib.decompress(entry["rest"]))
    return entry


def _lines(path: Path) -> list[Plain]:
    """Returns the lines of a file; the last may be cut short."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


# Metrics and summary


def _judge_metrics(folder: Path, records: list[Plain]) -> Iterator[Finding]:
    lines = _lines(folder / "metrics.jsonl")
    told = [r for r in records if r["event"] in ("step_committed", "step_skipped", "evaluated")]
    if len(lines) != len(told):
        yield Finding(Rule.METRICS, f"{len(lines)} lines of {len(told)} steps and evaluations")
        return
    for line, record in zip(lines, told, strict=True):
        right = _evaluation_line(record) if record["event"] == "evaluated" else _step_line(record)
        wrong = {name: (line.get(name), value) for name, value in right.items() if line.get(name) != value}
        if wrong:
            yield Finding(Rule.METRICS, f"step {record['step']}: {wrong}")


def _step_line(record: Plain) -> Plain:
    same = {name: record[name] for name in ("step", "loss", "grad_norm", "learning_rate", "live_nodes", "generation")}
    dropped = len(record["dropped"]) or None
    took_s, rate = round(record["duration_s"], 6), round(record["tokens_per_s"], 3)
    return same | {"tokens_per_s": rate, "step_s": took_s, "dropped": dropped}


def _evaluation_line(record: Plain) -> Plain:
    return {"step": record["step"], "eval_s": round(record["duration_s"], 6)} | {
        f"eval_{name}": record[name] for name in ("loss", "perplexity", "accuracy")
    }


def _judge_summary(folder: Path, records: list[Plain], witness: Witness) -> Iterator[Finding]:
    summary, told = json.loads((folder / "summary.json").read_text()), witness.told
    ended = records[-1]
    steps = [record for record in records if record["event"] == "step_committed"]
    losses = [record["loss"] for record in steps]
    lives = [r["live_nodes"] for r in records if r["event"] in ("step_committed", "node_lost", "node_joined")]
    right = {
        "status": ended["status"],
        "steps": ended["steps"],
        "message": ended["message"],
        "final_loss": losses[-1] if losses else None,
        "live_nodes": lives[-1] if lives else None,
        "step_time_median_s": _median([record["duration_s"] for record in steps]),
        "tokens_per_s": _median([record["tokens_per_s"] for record in steps]),
        "checkpoint": next((r["folder"] for r in reversed(records) if r["event"] == "checkpoint_saved"), None),
        "skipped_steps": len(told.skipped),
        "steps_redone": told.redone,
        "dropped_microbatches": told.num_dropped,
        "recoveries": told.recoveries,
        "skipped_microbatches": sum(r["skipped_microbatches"] for r in records if r["event"] == "run_ended"),
        "duplicated_microbatches": sum(r["duplicated_microbatches"] for r in records if r["event"] == "run_ended"),
    }
    for name, value in right.items():
        if summary[name] != value:
            yield Finding(Rule.SUMMARY, f"{name} is {summary[name]}, and the lines say {value}"[:500])
    whole_s, told_s = ended["time"] - records[0]["time"], sum(summary["time_s"].values())
    if not witness.decisions.job.may_resume and abs(whole_s - told_s) > 1e-3:
        yield Finding(Rule.SUMMARY, f"time_s is {told_s} s in all, and the run took {whole_s} s")
    saved = folder / "checkpoints" / f"step-{ended['steps']:08d}"
    if summary["weights_sha256"] is not None and (saved / MANIFEST).is_file():
        digest = weights_sha256(saved)
        if digest != summary["weights_sha256"]:
            yield Finding(Rule.SUMMARY, f"weights_sha256 is {summary['weights_sha256']}, and {saved.name} has {digest}")


def _median(values: list[float]) -> float | None:
    return round(statistics.median(values), 6) if values else None


# Checkpoints


def _judge_checkpoints(folder: Path, records: list[Plain], witness: Witness) -> Iterator[Finding]:
    """Judges the checkpoints that the run's last part told of and kept."""
    ends = [at for at, record in enumerate(records[:-1]) if record["event"] == "run_ended"]
    last = records[ends[-1] + 1 :] if ends else records
    steps = {r["step"] for r in records if r["event"] in ("step_committed", "step_skipped")}
    for step in sorted({record["step"] for record in last if record["event"] == "checkpoint_saved"}):
        saved = folder / "checkpoints" / f"step-{step:08d}"
        if not (saved / MANIFEST).is_file():
            continue
        manifest = json.loads((saved / MANIFEST).read_text())
        begun = {witness.decisions.job.done}
        if manifest["step"] != step or step not in steps | begun:
            yield Finding(Rule.SAVED, f"{saved.name} is of step {manifest['step']}, which is not told as committed")
        commits = [commit for (_, done), commit in witness.decisions.commits.items() if done == step]
        if commits and all(list(commit["exponents"]) != manifest["exponents"] for commit in commits):
            yield Finding(Rule.SAVED, f"{saved.name} has other exponents than step {step}")
        for group in manifest["groups"]:
            yield from _judge_file(saved / group["file"], group)


def _judge_file(path: Path, group: Plain) -> Iterator[Finding]:
    if not path.is_file():
        yield Finding(Rule.FILES, f"{path} is missing")
        return
    data = path.read_bytes()
    if (len(data), hashlib.sha256(data).hexdigest()) != (group["size_bytes"], group["sha256"]):
        yield Finding(Rule.FILES, f"{path} is not what {MANIFEST} says")


def weights_sha256(saved: Path) -> str:
    """Returns SHA-256 over the weights of a checkpoint, by layer, then by name: read as the format of safetensors says,
    a header's length in eight bytes, the header, and the tensors' bytes."""
    found = []
    for entry in json.loads((saved / MANIFEST).read_text())["groups"]:
        data = (saved / entry["file"]).read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:end])
        for name, tensor in header.items():
            if name.startswith(PARAMETER):
                begin, stop = tensor["data_offsets"]
                found.append((entry["layers"][0], name, entry["file"], data[end + begin : end + stop]))
    digest = hashlib.sha256()
    for _, _, _, body in sorted(found, key=lambda tensor: tensor[:3]):
        digest.update(body)
    return digest.hexdigest()
