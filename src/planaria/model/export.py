"""Exports trained weights to a Hugging Face folder that `from_pretrained` loads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from planaria.job.settings import Job
from planaria.model.initial import SkipRandomFill
from planaria.model.load import load_family, load_huggingface_model
from planaria.model.model import ModelError


def export(
    job: Job,
    tensors: Mapping[str, torch.Tensor],
    folder: Path,
    *,
    eos_token_id: int | None = None,
    pad_token_id: int | None = None,
) -> None:
    """Writes config.json and safetensors.

    Args:
        job: what the weights were trained for.
        tensors: every parameter, by `ParameterSpec.name`.
        folder: made if absent; files of the same names are replaced.
        eos_token_id: of the tokenizer; None: it has none.
        pad_token_id: likewise.

    Raises:
        ModelError: the model is not a Hugging Face model, or `tensors` are not its parameters.
    """
    if ":" in job.model.type:
        raise ModelError(
            f"model.type = {job.model.type!r}: only Hugging Face models can be exported. "
            "Read the checkpoint's tensors instead."
        )
    family = load_family(job.model.type)
    if family.embedding not in tensors:
        raise ModelError(f"no tensor {family.embedding!r}. Export with the job file of the run.")
    vocab_size = tensors[family.embedding].shape[0]
    model = load_huggingface_model(job.model, job.train, vocab_size=vocab_size)
    shapes = {spec.name: spec.shape for group in model.groups for spec in group.parameters}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    differences = sorted(name for name in shapes | found if shapes.get(name) != found.get(name))
    if differences:
        name = differences[0]
        raise ModelError(
            f"{len(differences)} tensors are not this job's model's: {name!r} has shape {found.get(name)}, "
            f"expected {shapes.get(name)}. Export with the job file of the run."
        )
    model.config.bos_token_id = model.config.eos_token_id = eos_token_id
    model.config.pad_token_id = pad_token_id
    with SkipRandomFill():
        whole: Any = family.model_class(model.config)
    _fill(whole, tensors)
    whole.eval().save_pretrained(folder)


def _fill(whole: Any, tensors: Mapping[str, torch.Tensor]) -> None:
    parameters = dict(whole.named_parameters(remove_duplicate=False))
    filled = set()
    with torch.no_grad():
        for name, tensor in tensors.items():
            parameters[name].copy_(tensor)
            filled.add(id(parameters[name]))
        for name, parameter in parameters.items():
            if id(parameter) not in filled:
                # Untied BERT keeps a bias beside its decoder's that no forward reads.
                assert name == "cls.predictions.bias", f"{name} was not trained"
                parameter.zero_()
