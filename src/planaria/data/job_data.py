"""A job's data in one process: tokens that were prepared in a folder, or datasets that Python functions return.

torch is imported only where batches are made, or where the user's code makes items.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import xxhash

from planaria.data.reading.sources import DataError
from planaria.data.streams.blocks import Blocks, StreamAbout
from planaria.data.streams.reader_process import ReaderProcess
from planaria.data.tokens.encoding import Tell
from planaria.data.tokens.token_set import TokensAbout, TokenSet
from planaria.job.history import KEYED, DataIdentity
from planaria.job.sections.data import DataSection, Packing
from planaria.job.settings import Job

if TYPE_CHECKING:
    from planaria.data.mixture import Mixture
    from planaria.data.sampler import Sampler
    from planaria.data.samples.dataset import Items
    from planaria.data.samples.examples import Examples
    from planaria.data.samples.samples import Batch, Samples
    from planaria.data.samples.translations import Translations
    from planaria.data.streams.shuffled import StreamSamples

_WEIGHTS_PIECES = 16
_WEIGHTS_PIECE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class JobData:
    """A job's data, opened.

    Attributes:
        job: whose they are.
        trained: what is trained on, and what is held out of it: the tokens of each source, the items of a dataset, or
            a stream.
        validation: other data to evaluate on.
        reader: the process that reads the stream, where this one started it.
    """

    job: Job
    trained: tuple[TokenSet, ...] | Items | Blocks
    validation: TokenSet | Items | None
    reader: ReaderProcess | None = None

    @property
    def stream_about(self) -> bytes:
        """The file that says what the stream is that is trained on; empty: it is none."""
        return msgspec.json.encode(self.trained.about) if isinstance(self.trained, Blocks) else b""

    def close(self) -> None:
        """Ends the process that reads a stream, if there is one."""
        if self.reader is not None:
            self.reader.close()

    def while_waiting(self, call: Callable[[], None]) -> None:
        """Has something called again and again while this process waits for samples of a stream; what it raises ends
        the wait."""
        if isinstance(self.trained, Blocks):
            self.trained.while_waiting = call

    def wait(self, step: int, tell: Tell) -> None:
        """Waits until the samples of a step are there, where they come from a stream.

        Args:
            step: from 1.
            tell: is told how far it is.

        Raises:
            DataError: the stream cannot be read, or is known to end before the run's last step.
        """
        if isinstance(self.trained, Blocks):
            self._stream(self.trained).wait(step, tell)

    @property
    def vocab_size(self) -> int | None:
        """Number of token ids; None where the data are no tokens."""
        if isinstance(self.trained, Blocks):
            return self.trained.about.vocab_size
        return self.trained[0].vocab_size if isinstance(self.trained, tuple) else None

    @property
    def example(self) -> Batch | None:
        """A microbatch of the first samples; None where the data are tokens, with nothing beside them."""
        rows = self.job.train.microbatch
        if isinstance(self.trained, Blocks):
            about = self.trained.about
            return None if about.vocab_size is not None else self.trained.batch(np.arange(rows) % about.looked_at)
        if not isinstance(self.trained, tuple):
            return self.trained.example(rows)
        if self.job.data.windows not in (Packing.APART, Packing.TRANSLATE):
            return None
        samples = self._windows(self.trained[0], self.job.data.parts[0], False, "data.source")
        return samples.batch(np.arange(rows) % len(samples), np.random.default_rng(0))

    @property
    def identity(self) -> DataIdentity:
        """What determines the samples."""
        if isinstance(self.trained, tuple):
            return token_identity(self.job, [tokens.about for tokens in self.trained])
        if isinstance(self.trained, Blocks):
            return stream_identity(self.job, self.trained.about)
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
    def notes(self) -> tuple[str, ...]:
        """What people are to be told: rows that were left out, and what no window holds."""
        if isinstance(self.trained, Blocks):
            return ()
        if not isinstance(self.trained, tuple):
            return tuple(_told_of_bad(*self.trained.bad_rows))
        found: list[str] = []
        for tokens, part in zip(self.trained, self.job.data.parts, strict=True):
            about = tokens.about
            found += _told_of_bad(about.bad_rows, about.first_bad_row)
            if part.has_examples:
                left_out = self._examples(tokens, part, "data.source").left_out
                found += [f"data.too_long: of {about.source}, {left_out}"] if left_out else []
        return tuple(found)

    def quick_hash(self) -> str:
        """Returns what tells these data and the job's weights from others, quickly: every node must have the same."""
        parts: list[TokenSet | Items | StreamAbout]
        if isinstance(self.trained, Blocks):
            parts = [self.trained.about]
        else:
            parts = [*self.trained] if isinstance(self.trained, tuple) else [self.trained]
        parts += [] if self.validation is None else [self.validation]
        hashed = [part.quick_hash() if isinstance(part, TokenSet) else part.fingerprint for part in parts]
        weights = self.job.model.weights
        return " ".join(hashed if weights is None else [*hashed, _hash_of_weights(Path(weights))])

    def sampler(self, *, masked_lm: bool, has_encoder: bool = False) -> Sampler | Mixture:
        """Returns what deals the samples to microbatches.

        Args:
            masked_lm: whether tokens are hidden and asked for, rather than the next ones.
            has_encoder: whether the model is an encoder with a decoder.

        Raises:
            DataError: there are too few, or the tokenizer cannot mask.
        """
        from planaria.data.mixture import Mixture
        from planaria.data.sampler import Sampler

        job, section, share = self.job, self.job.data, self.job.eval.share
        if has_encoder and any(part.windows in (Packing.APART, Packing.PAD) for part in section.parts):
            raise DataError(
                f'data.packing = "{section.windows.value}" is for models without an encoder. '
                f'Set it to "{Packing.TRANSLATE.value}", and read pairs.'
            )
        validation: Samples | None
        if isinstance(self.validation, TokenSet):
            validation = self._windows(self.validation, section, masked_lm, "eval.source")
        else:
            validation = self.validation
        samples: list[Samples]
        if isinstance(self.trained, tuple):
            samples = [
                self._windows(tokens, part, masked_lm, field)
                for tokens, part, field in zip(self.trained, section.parts, section.source_fields, strict=True)
            ]
        elif isinstance(self.trained, Blocks):
            samples = [self._stream(self.trained, masked_lm)]
        else:
            samples = [self.trained]
        samplers = [Sampler(one, job.train, eval_share=share, validation=validation) for one in samples]
        sampler: Sampler | Mixture = samplers[0]
        if section.sources:
            sampler = Mixture(samplers, [one.weight for one in section.sources], job.train)
        most = sampler.num_eval_microbatches
        if job.eval.every and job.eval.microbatches > most:
            raise DataError(
                f"eval.microbatches = {job.eval.microbatches} is more than the {most} that there are to evaluate on. "
                f"Set it to {most}, or give more data to evaluate on."
            )
        return sampler

    def _stream(self, blocks: Blocks, masked_lm: bool = False) -> StreamSamples:
        from planaria.data.samples.windows import Labelling
        from planaria.data.streams.shuffled import StreamSamples

        about, section = blocks.about, self.job.data
        label = None
        if about.vocab_size is not None:
            label = Labelling(
                vocab_size=about.vocab_size,
                mask_token_id=about.mask_token_id,
                tokenizer=about.tokenizer,
                mask_probability=section.mask_probability,
                masked_lm=masked_lm,
            )
        return StreamSamples(blocks, section, self.job.train, label)

    def _windows(self, tokens: TokenSet, section: DataSection, masked_lm: bool, field: str) -> Samples:
        train = self.job.train
        if masked_lm and section.windows is not Packing.ACROSS:
            raise DataError(
                f'data.packing = "{section.windows.value}" is for models that predict the next token, not hidden ones. '
                f'Set it to "{Packing.ACROSS.value}", and read texts.'
            )
        if section.has_examples:
            return self._examples(tokens, section, field)
        from planaria.data.samples.windows import Windows

        are_apart = section.windows is Packing.APART
        return Windows(tokens, train, section.mask_probability, masked_lm, field, are_apart=are_apart)

    def _examples(self, tokens: TokenSet, section: DataSection, field: str) -> Examples | Translations:
        from planaria.data.samples.examples import Examples
        from planaria.data.samples.translations import Translations

        kind = Translations if section.windows is Packing.TRANSLATE else Examples
        return kind(tokens, section, self.job.train.sequence_length, field)


def stream_identity(job: Job, about: StreamAbout) -> DataIdentity:
    """Returns what determines the samples of a job with a stream."""
    is_text = about.vocab_size is not None
    return DataIdentity(
        content=about.fingerprint,
        tokens=about.looked_at,
        tokenizer=about.tokenizer_identity,
        vocab_size=about.vocab_size or 0,
        sequence_length=job.train.sequence_length if is_text else 0,
        mask_probability=job.data.mask_probability,
        seed=job.train.seed,
        order=KEYED,
        unit="samples of a stream",
        shuffle_buffer=job.data.shuffle_buffer,
    )


def token_identity(job: Job, sources: Sequence[TokensAbout]) -> DataIdentity:
    """Returns what determines the samples of a job with the tokens of these sources."""
    first, *others = sources
    together = hashlib.sha256(" ".join(about.fingerprint for about in sources).encode()).hexdigest()
    return DataIdentity(
        content=together if others else first.fingerprint,
        tokens=sum(about.count for about in sources),
        tokenizer=first.tokenizer_identity,
        vocab_size=first.vocab_size,
        sequence_length=job.train.sequence_length,
        mask_probability=job.data.mask_probability,
        seed=job.train.seed,
        order=first.order,
        eval_share=job.eval.share,
        packing=job.data.windows.value,
        too_long=job.data.too_long.value,
        weights=tuple(one.weight for one in job.data.sources),
    )


def _hash_of_weights(folder: Path) -> str:
    """Hashes (xxh3_128, hex) names and sizes of a folder's safetensors, and evenly spaced pieces of each."""
    digest = xxhash.xxh3_128()
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        last = max(0, size - _WEIGHTS_PIECE_BYTES)
        with path.open("rb") as file:
            for start in sorted({index * last // (_WEIGHTS_PIECES - 1) for index in range(_WEIGHTS_PIECES)}):
                file.seek(start)
                digest.update(file.read(_WEIGHTS_PIECE_BYTES))
    return digest.hexdigest()


def _told_of_bad(count: int, first: str) -> list[str]:
    return [f"data.on_bad_row: {count} rows are left out; the first is {first}"] if count else []
