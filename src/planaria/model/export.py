"""Exports trained weights to a Hugging Face folder that `from_pretrained` loads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from planaria.job.settings import Job
from planaria.model.huggingface import HuggingFaceModel
from planaria.model.load import load_huggingface_model
from planaria.model.model import ModelError
from planaria.model.tensors.lora import write_adapters


def export(
    job: Job,
    tensors: Mapping[str, torch.Tensor],
    folder: Path,
    *,
    vocab_size: int | None = None,
    eos_token_id: int | None = None,
    pad_token_id: int | None = None,
) -> None:
    """Writes config.json and safetensors.

    Args:
        job: what the weights were trained for.
        tensors: every parameter that was trained, by `ParameterSpec.name`.
        folder: made if absent; files of the same names are replaced.
        vocab_size: tokens that the tokenizer knows.
        eos_token_id: of the tokenizer; None: it has none.
        pad_token_id: the id of the token that fills up; None: there is none.

    Raises:
        ModelError: the model is not a Hugging Face model, `tensors` are not its parameters, or what was frozen is not
            in the folder of weights any more.
    """
    if ":" in job.model.type:
        raise ModelError(
            f"model.type = {job.model.type!r}: only Hugging Face models can be exported so. "
            "Add --format torch, which takes any model."
        )
    model = _model_of(job, tensors, vocab_size)
    shapes = {spec.name: spec.shape for group in model.groups for spec in group.parameters}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    differences = sorted(name for name in shapes | found if shapes.get(name) != found.get(name))
    if differences:
        name = differences[0]
        raise ModelError(
            f"{len(differences)} tensors are not this job's model's: {name!r} has shape {found.get(name)}, "
            f"expected {shapes.get(name)}. Export with the job file of the run."
        )
    config: Any = model.config
    if hasattr(config, "vocab_size"):
        config.bos_token_id = config.eos_token_id = eos_token_id
        # Some models cannot do without the one that they were made with.
        config.pad_token_id = getattr(config, "pad_token_id", None) if pad_token_id is None else pad_token_id
    with _without_bars():
        model.to_export(tensors).save_pretrained(folder)


@contextmanager
def _without_bars() -> Iterator[None]:
    """Keeps transformers' progress bars off the screen: a callback may export beside a run's lines."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def export_adapters(job: Job, tensors: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Writes adapters alone, as peft loads them.

    Args:
        job: what they were trained for.
        tensors: by `ParameterSpec.name`.
        folder: made if absent.

    Raises:
        ModelError: the job has none.
    """
    if job.model.lora is None:
        raise ModelError("--adapters: the run's job has no [model.lora]. Leave it out.")
    write_adapters(folder, job.model.lora, job.model.weights, tensors)


def _model_of(job: Job, tensors: Mapping[str, torch.Tensor], vocab_size: int | None) -> HuggingFaceModel:
    """Returns the job's model, with as many rows as its embedding has there, or the tokenizer where that is frozen."""
    model = load_huggingface_model(job.model, job.train, vocab_size=vocab_size)
    name = model.embedding
    if name is None or name in {spec.name for spec in model.frozen}:
        return model
    if name not in tensors:
        raise ModelError(f"no tensor {name!r}. Export with the job file of the run.")
    return load_huggingface_model(job.model, job.train, vocab_size=tensors[name].shape[0])
