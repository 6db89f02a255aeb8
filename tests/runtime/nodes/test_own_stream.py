"""Blocks of a stream on a host that does not see where they are read: what is asked for, what comes, what is kept."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from planaria.data.streams.blocks import Blocks, Part, StreamAbout, open_stream, stream_folder, take_stream
from planaria.data.streams.shelf import Shelf
from planaria.job.errors import UserError
from planaria.protocol.messages.agent import BlockPiece, WantBlock, decode_from_agent, decode_to_agent
from planaria.protocol.messages.message import encode
from planaria.runtime.coordinator import stream_blocks
from planaria.runtime.coordinator.stream_blocks import StreamBlocks
from planaria.runtime.nodes.own_stream import OwnStream
from planaria.runtime.thresholds import BLOCK_AGAIN_S

PARTS = (Part(name="x", dtype="uint8", shape=(4,)),)
ABOUT = StreamAbout(named="data.source", key="", fingerprint="f", looked_at=1, parts=PARTS, block_samples=2)


def content_of(block: int) -> bytes:
    return bytes(range(8 * block, 8 * block + 8))


class Pair:
    """The blocks where they are read, and where they are wanted; words between them go over the wire."""

    def __init__(self, folder: Path, most: int | None = None) -> None:
        self.read = Blocks.begin(stream_folder(folder / "coordinator"), ABOUT)
        self.source = StreamBlocks(self.read, msgspec.json.encode(ABOUT))
        self.here = take_stream(folder / "host", self.source.about)
        self.own = OwnStream(self.here, Shelf(self.here, most))
        self.asked: list[tuple[int, int]] = []
        self.now = 0.0

    def answer(self, wanted: WantBlock) -> BlockPiece:
        heard = decode_from_agent(encode(wanted))
        assert isinstance(heard, WantBlock)
        self.asked.append((heard.block, heard.offset))
        answer = decode_to_agent(encode(self.source.answer(heard)))
        assert isinstance(answer, BlockPiece)
        return answer

    def go_on(self) -> None:
        """Until there is nothing to ask for."""
        while (wanted := self.own.next(self.now)) is not None:
            while wanted is not None:
                wanted = self.own.take(self.answer(wanted), self.now)


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setattr(stream_blocks, "BLOCK_PIECE_BYTES", 5)
    return Pair(tmp_path)


def test_a_block_that_is_wanted_comes_in_pieces_and_no_other_does(pair: Pair) -> None:
    for block in range(3):
        pair.read.keep(block, content_of(block), None)
    pair.here.want(3)  # a sample of block 1
    pair.go_on()
    assert pair.here.lying == [1]
    assert pair.here.path(1).read_bytes() == content_of(1)
    rows = pair.here.batch(np.array([2, 3], np.int64))["x"]
    assert rows.tolist() == [[*range(8, 12)], [*range(12, 16)]]
    assert pair.asked == [(1, 0), (1, 5)]
    opened = open_stream(pair.here.folder.parent)
    assert opened is not None
    assert opened.about == ABOUT


def test_a_block_that_is_not_read_yet_is_wanted_there_and_asked_for_again(pair: Pair) -> None:
    pair.here.want_block(7)
    pair.here.want_block(9)
    pair.go_on()
    assert pair.read.taken_wants() == {7, 9}
    assert pair.asked == [(7, 0), (9, 0)]
    pair.read.tell_read(3)
    pair.read.keep(7, content_of(7), None)
    pair.go_on()
    assert pair.asked == [(7, 0), (9, 0)], "not at once"
    pair.now += BLOCK_AGAIN_S
    pair.go_on()
    assert pair.here.lying == [7]
    assert pair.here.num_read == 3


def test_what_is_wanted_first_comes_first(pair: Pair) -> None:
    for block in range(10):
        pair.read.keep(block, content_of(block)[:5], None)
    asked = []
    for block in (7, 5):
        pair.here.want_block(block)
        wanted = pair.own.next(pair.now)
        asked += [] if wanted is None else [wanted.block]
    pair.here.want_block(6)  # while an answer is awaited
    pair.own.ask_again()
    pair.go_on()
    assert asked == [7]
    assert [block for block, _ in pair.asked] == [7, 5, 6]


def test_the_end_and_a_failure_are_told(pair: Pair) -> None:
    pair.read.end(3)
    pair.read.keep(1, content_of(1)[:4], None)
    pair.here.want_block(1)
    pair.here.want_block(2)
    pair.go_on()
    assert pair.here.num_samples == 3
    assert pair.asked == [(1, 0)], "behind the end there is nothing"
    assert not pair.here.wait(3)
    pair.read.fail(UserError("the disk is full"))
    pair.here.want_block(0)
    pair.go_on()
    with pytest.raises(ValueError, match="the disk is full"):
        pair.here.raise_failure()


def test_pieces_of_a_block_that_is_removed_meanwhile_or_is_another_are_not_kept(pair: Pair) -> None:
    pair.read.keep(0, content_of(0), None)
    pair.here.want_block(0)
    first = pair.own.next(0.0)
    assert first is not None
    second = pair.own.take(pair.answer(first), 0.0)
    assert second == WantBlock(block=0, offset=5)
    pair.read.path(0).unlink()
    assert pair.own.take(pair.answer(second), 0.0) is None
    pair.read.path(0).write_bytes(content_of(1))  # not what its note says
    pair.now = 1.0
    pair.go_on()
    assert pair.here.lying == []
    pair.read.path(0).write_bytes(content_of(0))
    pair.now = 2.0
    pair.go_on()
    assert pair.here.path(0).read_bytes() == content_of(0)


def test_what_was_asked_of_a_coordinator_that_is_gone_is_asked_of_the_next(pair: Pair) -> None:
    pair.read.keep(0, content_of(0), None)
    pair.here.want_block(0)
    first = pair.own.next(0.0)
    assert first is not None
    second = pair.own.take(pair.answer(first), 0.0)
    assert pair.own.next(0.0) is None, "one piece is under way"
    pair.own.ask_again()
    assert second is not None
    assert pair.own.take(pair.answer(second), 0.0) is None, "nobody asked for that"
    pair.go_on()
    assert pair.here.path(0).read_bytes() == content_of(0)


def test_blocks_here_are_as_few_as_the_job_says(tmp_path: Path) -> None:
    pair = Pair(tmp_path, most=2)
    for block in range(4):
        pair.read.keep(block, content_of(block), None)
    for block in (0, 1, 0, 2):
        pair.here.want_block(block)
        pair.go_on()
    assert sorted(pair.here.lying) == [0, 2]


def test_a_disk_that_is_full_is_said_in_a_line(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    pair.read.keep(0, content_of(0), None)
    pair.here.want_block(0)
    monkeypatch.setattr(pair.here, "keep", full)
    with pytest.raises(UserError, match=r"cannot be written to .*No space left on device.*Make room there"):
        pair.go_on()
