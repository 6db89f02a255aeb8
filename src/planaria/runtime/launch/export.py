"""Implements `planaria export`: writes a run's checkpoint as a Hugging Face folder, or for torch."""

from __future__ import annotations

import warnings
from pathlib import Path

from planaria.checkpoint.manifest import PARAMETER, Manifest, newest, place_of, read_manifest, step_folder
from planaria.checkpoint.state import read_group, read_parameters
from planaria.checkpoint.store import Place
from planaria.data.export import export_tokenizer
from planaria.data.opening import token_folders
from planaria.data.tokens.preparation import CHAT_TEMPLATE, TOKENIZER
from planaria.data.tokens.tokenizer import BYTES, Tokenizer, load_tokenizer
from planaria.job.errors import UserError
from planaria.job.parse import job_from_json
from planaria.job.settings import Job
from planaria.job.values import is_dataset
from planaria.model.export import export, export_adapters
from planaria.runtime.component_settings import is_emulated
from planaria.runtime.run_folder.run_folder import RunFolder


def _tokenizer(job: Job, folder: RunFolder) -> tuple[Path | None, Tokenizer]:
    """Returns the tokenizer that the run was trained with, and its file unless it is the one of bytes."""
    if job.data.tokenizer == BYTES:
        return None, load_tokenizer(BYTES)
    kept = token_folders(job, folder.data)[0] / TOKENIZER
    path = kept if kept.is_file() else Path(job.data.tokenizer)  # an older run keeps none
    tokenizer = load_tokenizer(str(path))
    return path / TOKENIZER if path.is_dir() else path, tokenizer


def _opened(run: Path, step: int | None) -> tuple[Job, Place, Manifest]:
    """Returns a run's job, and a checkpoint of it with its manifest."""
    folder = RunFolder.open(run)
    job = job_from_json(folder.job.read_bytes())
    if is_emulated(job):
        raise UserError(f"run folder {run} is of an emulated device: its weights are made up. Export another run.")
    if step is None:
        checkpoint, manifest, _ = newest(folder.checkpoints)
        return job, checkpoint, manifest
    own = step_folder(folder.checkpoints, step)
    if not own.is_dir():
        there = ", ".join(sorted(str(int(path.name[5:])) for path in folder.checkpoints.glob("step-*"))) or "none"
        raise UserError(f"--step {step}: run folder {run} has no checkpoint of it (there are: {there}).")
    checkpoint = place_of(own)
    return job, checkpoint, read_manifest(checkpoint)


def _refuse_full(target: Path) -> None:
    if target.exists() and any(target.iterdir()):
        raise UserError(f"--to {target}: the folder is not empty. Choose another.")


def _cannot_write(target: Path, error: OSError) -> UserError:
    return UserError(f"--to {target}: it cannot be written: {error.strerror or error}. Choose another.")


def export_for_torch(run: Path, target: Path, step: int | None = None) -> None:
    """Writes a checkpoint of `run` into the folder `target`, as torch.distributed.checkpoint has them.

    `model` has the parameters by name, `optimizer` the optimizer's values under `state`, named as torch.optim does.

    Args:
        run: the run's folder.
        target: where; made if absent.
        step: of the checkpoint; None: the newest that is whole.

    Raises:
        UserError: no such run or checkpoint, or a target that is not empty or cannot be written.
    """
    import torch
    from torch.distributed.checkpoint.state_dict_saver import save

    job, checkpoint, manifest = _opened(run, step)
    made = torch.tensor(float(job.train.start_steps + manifest.step))
    parameters: dict[str, torch.Tensor] = {}
    state: dict[str, dict[str, torch.Tensor]] = {}
    for group in range(len(manifest.groups)):
        for kind, values in read_group(checkpoint, manifest, group).items():
            for name, value in values.items():
                if kind == PARAMETER:
                    parameters[name] = value
                else:
                    state.setdefault(name, {"step": made.clone()})[kind] = value
    try:
        _refuse_full(target)
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # that there is one process alone
            save({"model": parameters, "optimizer": {"state": state}}, checkpoint_id=str(target), no_dist=True)
    except OSError as error:
        raise _cannot_write(target, error) from None


def export_run(run: Path, target: Path, step: int | None = None, *, adapters: bool = False) -> None:
    """Writes the weights of a checkpoint of `run`, and its tokenizer if it has one, into the folder `target`.

    Args:
        run: the run's folder.
        target: where; made if absent.
        step: of the checkpoint; None: the newest that is whole.
        adapters: write adapters alone, not the model into which they are merged.

    Raises:
        UserError: no such run, no checkpoint, or a target that exists or cannot be written.
        ModelError: a model that is not Hugging Face's, or without adapters.
    """
    folder = RunFolder.open(run)
    job, checkpoint, manifest = _opened(run, step)
    parameters = read_parameters(checkpoint, manifest)
    file, tokenizer = (None, None) if is_dataset(job.data.source) else _tokenizer(job, folder)
    try:
        _refuse_full(target)
        if adapters:
            export_adapters(job, parameters, target)
        elif tokenizer is None:
            export(job, parameters, target, vocab_size=None)
        else:
            export(
                job,
                parameters,
                target,
                vocab_size=tokenizer.vocab_size,
                eos_token_id=tokenizer.separator_id,
                pad_token_id=tokenizer.pad_token_id,
            )
            parts = zip(job.data.parts, token_folders(job, folder.data), strict=True)
            template = next((place / CHAT_TEMPLATE for part, place in parts if part.messages), None)
            export_tokenizer(file, target, most_tokens=job.train.sequence_length, chat_template=template)
    except OSError as error:
        raise _cannot_write(target, error) from None
