"""The witness's tap has what a journal has, whenever its coordinator dies."""

from pathlib import Path

from planaria.protocol.messages.journal import JournalDistrust, encode_entry
from tests.e2e.tap import Tap
from tests.testkit.witness.run_folder import TAP, tapped

ENTRIES = [JournalDistrust(step=at) for at in range(4)]


def kinds(folder: Path) -> list[str]:
    return [entry[0] for entry in tapped(folder / TAP)]


def opened(folder: Path) -> Tap:
    tap = Tap()
    tap.open(folder, "a run")
    return tap


def test_what_only_the_journal_has_is_read_from_it(tmp_path: Path) -> None:
    """Its coordinator was killed between the two writes."""
    first = opened(tmp_path)
    first.read([])
    first.wrote(ENTRIES[0])
    opened(tmp_path).read(ENTRIES[:3])
    opened(tmp_path).read(ENTRIES)
    assert kinds(tmp_path) == ["run", *["journal"] * 4]
    assert [entry[1] for entry in tapped(tmp_path / TAP)[1:]] == [encode_entry(entry) for entry in ENTRIES]


def test_what_the_journal_lost_is_cut(tmp_path: Path) -> None:
    first = opened(tmp_path)
    for entry in ENTRIES:
        first.wrote(entry)
    opened(tmp_path).read(ENTRIES[:2])
    assert kinds(tmp_path) == ["run", *["journal"] * 4, "cut"]
