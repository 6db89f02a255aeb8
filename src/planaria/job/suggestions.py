"""What was probably meant by a field, a section or a path that does not exist."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

OTHER_NAMES: Mapping[str, str] = {
    # fields
    "lr": "learning_rate",
    "max_lr": "learning_rate",
    "peak_lr": "learning_rate",
    "max_steps": "steps",
    "num_steps": "steps",
    "total_steps": "steps",
    "train_steps": "steps",
    "iterations": "steps",
    "max_iters": "steps",
    "epochs": "steps",
    "num_epochs": "steps",
    "num_train_epochs": "steps",
    "batch": "global_batch",
    "batch_size": "global_batch",
    "global_batch_size": "global_batch",
    "train_batch_size": "global_batch",
    "microbatch_size": "microbatch",
    "micro_batch": "microbatch",
    "micro_batch_size": "microbatch",
    "per_device_train_batch_size": "microbatch",
    "seq_len": "sequence_length",
    "seq_length": "sequence_length",
    "seqlen": "sequence_length",
    "block_size": "sequence_length",
    "context_length": "sequence_length",
    "max_length": "sequence_length",
    "max_seq_length": "sequence_length",
    "scheduler": "lr_schedule",
    "lr_scheduler": "lr_schedule",
    "lr_scheduler_type": "lr_schedule",
    "warmup": "warmup_steps",
    "min_lr": "min_lr_ratio",
    "adam_betas": "betas",
    "adam_epsilon": "eps",
    "epsilon": "eps",
    "wd": "weight_decay",
    "grad_clip": "clip_norm",
    "max_grad_norm": "clip_norm",
    "gradient_clipping": "clip_norm",
    "random_seed": "seed",
    "precision": "dtype",
    "bf16": "dtype",
    "gradient_checkpointing": "activation_checkpointing",
    "recompute": "activation_checkpointing",
    "name_or_path": "type",
    "model_type": "type",
    "checkpoint": "weights",
    "pretrained": "weights",
    "path": "source",
    "dataset": "source",
    "train_file": "source",
    "mlm_probability": "mask_probability",
    "num_nodes": "nodes",
    "nnodes": "nodes",
    "workers": "nodes",
    "num_workers": "nodes",
    "world_size": "nodes",
    "gpus": "devices_per_node",
    "num_gpus": "devices_per_node",
    "gpus_per_node": "devices_per_node",
    "nproc_per_node": "devices_per_node",
    "accelerator": "device",
    "memory": "memory_gb",
    "pipeline_schedule": "schedule",
    "master_addr": "host",
    "master_port": "port",
    "f": "fault_tolerance",
    "replicas": "fault_tolerance",
    "heartbeat_timeout": "heartbeat_timeout_s",
    "mtbf": "mean_time_between_failures_s",
    "output_dir": "folder",
    "out_dir": "folder",
    "run_name": "name",
    "save_every": "checkpoint_every",
    "save_steps": "checkpoint_every",
    "save_interval": "checkpoint_every",
    "checkpoint_interval": "checkpoint_every",
    "save_total_limit": "keep_checkpoints",
    # sections
    "training": "train",
    "optimizer": "train",
    "optim": "train",
    "trainer": "train",
    "dataset_config": "data",
    "tokenizer": "data",
    "hardware": "cluster",
    "distributed": "cluster",
    "fault": "resilience",
    "checkpoints": "run",
    "logging": "run",
}
"""A name that is used elsewhere -> ours."""

_HUB_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w-]*(\.\d+[\w-]*)*")


def did_you_mean(
    given: object, names: Iterable[str], *, prefix: str = "", elsewhere: Mapping[str, str] | None = None
) -> str:
    """Returns the question to append to a refusal, with a space before it; "" where nothing comes near.

    Args:
        given: what was written.
        names: what there is in its place.
        prefix: of these names.
        elsewhere: field -> section, of fields that are in other sections.
    """
    if not isinstance(given, str):
        return ""
    known, elsewhere = list(names), elsewhere or {}
    key = given.lower().replace("-", "_")
    ours = OTHER_NAMES.get(key, key)
    for name in (ours, key):
        if name in known:
            return f" Did you mean {prefix}{name}?{_of_passes(key)}"
    for name in (key, ours):
        if name in elsewhere:
            return f" Did you mean {elsewhere[name]}.{name}?{_of_passes(key)}"
    close = difflib.get_close_matches(given, known, n=1)
    return f" Did you mean {prefix}{close[0]}?" if close else ""


def _of_passes(key: str) -> str:
    return " Steps are counted, not passes over the data." if key.endswith("epochs") else ""


def hub_hint(path: str, *wanted: str) -> str:
    """Returns how to get what is on the Hugging Face hub where a path that does not exist may be a name there, or "".

    Args:
        path: that is not there.
        wanted: of the repository, as further arguments of `hf download`; none: all of it.
    """
    if not _HUB_NAME.fullmatch(path):
        return ""
    what = " ".join([path, *wanted])
    return f" A name on the Hugging Face hub is no path: hf download {what} --local-dir {path.rpartition('/')[2]}"
