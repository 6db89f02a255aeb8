"""A job's data in one process: tokens that were prepared in a folder, or datasets that Python functions return.

torch is imported only where batches are made, or where the user's code makes items.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from planaria.data.encoding import Tell
from planaria.data.sources import DataError
from planaria.data.tokens import TokensAbout, TokenSet, open_tokens, prepare_tokens
from planaria.job.checks import is_dataset
from planaria.job.history import KEYED, DataIdentity
from planaria.job.settings import Job

if TYPE_CHECKING:
    from planaria.data.sampler import Sampler
    from planaria.data.samples.dataset import Items
    from planaria.data.samples.samples import Batch, Samples

Check = Callable[[DataIdentity], None]
"""Raises what speaks against data, before they replace others."""

_CACHE = ".tokens"
"""In the folder of runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobData:
    """A job's data, opened.

    Attributes:
        job: whose they are.
        trained: what is trained on, and what is held out of it.
        validation: other data to evaluate on.
    """

    job: Job
    trained: TokenSet | Items
    validation: TokenSet | Items | None

    @property
    def vocab_size(self) -> int | None:
        """Number of token ids; None where the data are no tokens."""
        return self.trained.vocab_size if isinstance(self.trained, TokenSet) else None

    @property
    def example(self) -> Batch | None:
        """A microbatch of the first samples; None where the data are tokens, whose batches are all alike."""
        return None if isinstance(self.trained, TokenSet) else self.trained.example(self.job.train.microbatch)

    @property
    def identity(self) -> DataIdentity:
        """What determines the samples."""
        if isinstance(self.trained, TokenSet):
            return token_identity(self.job, self.trained.about)
        return DataIdentity(
            content=self.trained.fingerprint,
            tokens=len(self.trained),
            tokenizer="",
            vocab_size=0,
            sequence_length=0,
            mask_probability=self.job.data.mask_probability,
            seed=self.job.train.seed,
            order=self.trained.order,
            eval_share=self.job.eval.share,
            unit=self.trained.unit,
        )

    @property
    def bad_rows(self) -> tuple[int, str]:
        """How many rows were left out, and the first of them, with the reason."""
        about = self.trained.about if isinstance(self.trained, TokenSet) else None
        return (0, "") if about is None else (about.bad_rows, about.first_bad_row)

    def quick_hash(self) -> str:
        """Returns what tells these data from others, quickly: every node must have the same ones."""
        parts = [self.trained] if self.validation is None else [self.trained, self.validation]
        return " ".join(part.quick_hash() if isinstance(part, TokenSet) else part.fingerprint for part in parts)

    def sampler(self, *, masked_lm: bool) -> Sampler:
        """Returns what deals the samples to microbatches.

        Args:
            masked_lm: whether tokens are hidden and asked for, rather than the next ones.

        Raises:
            DataError: there are too few, or the tokenizer cannot mask.
        """
        from planaria.data.sampler import Sampler

        job = self.job
        trained = self._samples(self.trained, masked_lm, "data.source")
        validation = None if self.validation is None else self._samples(self.validation, masked_lm, "eval.source")
        sampler = Sampler(trained, job.train, eval_share=job.eval.share, validation=validation)
        most = sampler.num_eval_microbatches
        if job.eval.every and job.eval.microbatches > most:
            raise DataError(
                f"eval.microbatches = {job.eval.microbatches} is more than the {most} that there are to evaluate on. "
                f"Set it to {most}, or give more data to evaluate on."
            )
        return sampler

    def _samples(self, data: TokenSet | Items, masked_lm: bool, field: str) -> Samples:
        if not isinstance(data, TokenSet):
            return data
        from planaria.data.samples.windows import Windows

        return Windows(data, self.job.train, self.job.data.mask_probability, masked_lm, field)


def prepare(
    job: Job,
    folder: Path,
    check: Check = lambda identity: None,
    order: str = KEYED,
    tell: Tell = lambda text: None,
) -> JobData:
    """Opens a job's data; tokens are written to a folder first, where they are not there already.

    Args:
        job: whose they are.
        folder: of the tokens, see `prepare_tokens`.
        check: asked before tokens in the folder are replaced by others.
        order: in which samples of tokens come.
        tell: is told how far it is.

    Raises:
        DataError: they cannot be had.
        UserError: the function of a dataset cannot be imported.
    """
    if is_dataset(job.data.source):
        data = open_data(job, folder)
        check(data.identity)
        return data

    def check_tokens(about: TokensAbout) -> None:
        check(token_identity(job, about))

    cache = Path(job.run.folder) / _CACHE
    trained = prepare_tokens(job.data, folder, check_tokens, order, cache=cache, tell=tell)
    if not job.eval.source:
        shutil.rmtree(_validation_folder(folder), ignore_errors=True)
        return JobData(job=job, trained=trained, validation=None)
    section = msgspec.structs.replace(job.data, source=job.eval.source)
    validation = prepare_tokens(section, _validation_folder(folder), cache=cache, tell=tell, field="eval.source")
    return JobData(job=job, trained=trained, validation=validation)


def open_data(job: Job, folder: Path) -> JobData:
    """Opens a job's data in a process that needs them: a dataset is made, tokens lie in the folder.

    Raises:
        DataError: there are none.
        UserError: the function of a dataset cannot be imported.
    """
    if not is_dataset(job.data.source):
        validation = open_tokens(_validation_folder(folder)) if job.eval.source else None
        return JobData(job=job, trained=open_tokens(folder), validation=validation)
    from planaria.data.samples.dataset import load_items

    trained = load_items(job.data.source, job.data.config, "data.source")
    if not job.eval.source:
        return JobData(job=job, trained=trained, validation=None)
    other = load_items(job.eval.source, {**job.data.config, **job.eval.config}, "eval.source")
    other.check_like(trained)
    return JobData(job=job, trained=trained, validation=other)


def token_identity(job: Job, about: TokensAbout) -> DataIdentity:
    """Returns what determines the samples of a job with these tokens."""
    return DataIdentity(
        content=about.fingerprint,
        tokens=about.count,
        tokenizer=about.tokenizer_identity,
        vocab_size=about.vocab_size,
        sequence_length=job.train.sequence_length,
        mask_probability=job.data.mask_probability,
        seed=job.train.seed,
        order=about.order,
        eval_share=job.eval.share,
    )


def _validation_folder(folder: Path) -> Path:
    """Returns where the tokens are that a job is evaluated on, if it has any of their own."""
    return folder / "validation"
