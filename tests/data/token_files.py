"""Small token sets for the tests."""

from __future__ import annotations

from pathlib import Path

from planaria.data.tokens.preparation import prepare_tokens
from planaria.data.tokens.token_set import TokenSet
from planaria.job.sections.data import DataSection
from planaria.job.sections.train import TrainSection


def tokens_of(folder: Path, text: bytes) -> TokenSet:
    source = folder / "text.txt"
    source.write_bytes(text)
    return prepare_tokens(DataSection(source=str(source)), folder / "tokens")


def train_of(*, global_batch: int = 8, microbatch: int = 2, sequence_length: int = 16, seed: int = 0) -> TrainSection:
    return TrainSection(
        steps=4, global_batch=global_batch, microbatch=microbatch, sequence_length=sequence_length, seed=seed
    )
