"""Datasets of the Hugging Face hub by name: `hf://OWNER/NAME?split=train&config=en&revision=main`.

The library `datasets` fetches one and lays it down as Arrow files in its own cache, where they are read as those of any
folder. What it has there does without a network. With `rows=N` its first N rows alone are
streamed, and with `stream=true` all of them while a run trains (`planaria.data.streams`).
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from planaria.data.reading.sources import DataError, Kind, SourceFile
from planaria.data.reading.stream import Stream, laid_down
from planaria.job.errors import in_one_line

_NAME = re.compile(r"hf://(?!datasets/|spaces/|buckets/)(?P<name>[\w.-]+(?:/[\w.-]+)?)(?:\?(?P<options>.*))?")
_OPTIONS = ("split", "config", "revision", "rows", "stream")
_SPLIT = "train"
_STREAMED = "streamed"


def is_hub_name(source: str) -> bool:
    """Whether a source is a dataset of the hub by its name."""
    return _NAME.fullmatch(source) is not None


def hub_files(
    source: str, columns: Collection[str], cache: Path, named: str, tell: Callable[[str], None]
) -> tuple[SourceFile, ...]:
    """Returns files of a split of a dataset of the hub, fetched if they are not here.

    Args:
        source: its name, with its options.
        columns: that are read.
        cache: folder in which rows of streams are kept.
        named: how messages call the source.
        tell: is told that it is fetched.

    Raises:
        DataError: it cannot be had.
    """
    name, options = _parsed(source, named)
    tell(f"dataset {name} is fetched, if it is not here")
    with _told_where_missing(name, named):
        if num_rows := int(options.get("rows", 0)):
            wanted = sorted({column.partition(".")[0] for column in columns})
            place = cache / _STREAMED / hashlib.sha256("\0".join([source, *wanted]).encode()).hexdigest()
            files = laid_down(lambda: _loaded(name, options, streaming=True), num_rows, wanted, place, tell)
        else:
            found = _loaded(name, options).cache_files
            files = tuple(SourceFile(Path(file["filename"]), Kind.ARROW) for file in found)
    if not files:
        raise DataError(f"{named}: {name} has no files of its own. Give its files, as in hf://datasets/{name}/*.jsonl.")
    return files


def hub_stream(source: str, named: str) -> Stream:
    """Returns the rows of a split of a dataset of the hub as a stream, at its beginning.

    Args:
        source: its name, with its options.
        named: how messages call the source.

    Raises:
        DataError: it cannot be had.
    """
    name, options = _parsed(source, named)
    with _told_where_missing(name, named):
        stream: Stream = _loaded(name, options, streaming=True)
        return stream


def _parsed(source: str, named: str) -> tuple[str, Mapping[str, str]]:
    found = _NAME.fullmatch(source)
    assert found is not None
    return found["name"], _options(found["options"] or "", named)


def _loaded(name: str, options: Mapping[str, str], **more: bool) -> Any:
    return _library().load_dataset(
        name, options.get("config"), split=options["split"], revision=options.get("revision"), **more
    )


@contextmanager
def _told_where_missing(name: str, named: str) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # the library, and what is under it, have many errors
        raise DataError(
            f"{named} cannot be had from the hub ({in_one_line(error)}). Check name, split, config and network; or "
            f"fetch it where there is one (hf download {name} --repo-type dataset --local-dir FOLDER), and give its "
            "files."
        ) from error


def _options(given: str, named: str) -> Mapping[str, str]:
    options = {"split": _SPLIT, **dict(parse_qsl(given, keep_blank_values=True))}
    if unknown := sorted(options.keys() - {*_OPTIONS}):
        raise DataError(f"{named}: {unknown[0]!r} is not one of {', '.join(_OPTIONS)}. Leave it out.")
    if re.search(r"[^\w.-]", options["split"]):
        raise DataError(f"{named}: split={options['split']} is not the name of one split. Name one, and no part of it.")
    if not re.fullmatch(r"[1-9][0-9]{0,15}", options.get("rows", "1")):
        raise DataError(
            f"{named}: rows={options['rows']} is not how many rows to read. Write for instance rows=100000."
        )
    if options.get("stream", "true") != "true" or {"stream", "rows"} <= options.keys():
        raise DataError(
            f"{named}: stream={options['stream']} is not stream=true alone. Write stream=true for all rows while a run "
            "trains, or rows=N for the first N before it."
        )
    return options


def _library() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"Datasets by name need datasets, which cannot be imported ({error}). Install it: pip install datasets."
        ) from error
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it would tell of each time that it tries again
    return datasets
