"""Follows a file of lines by offset: each whole line is read once, and a half-written last one waits for its end."""

from __future__ import annotations

from pathlib import Path

from planaria.runtime.run_folder.step_lines import PIECE_BYTES


class Tail:
    """The lines that a file got since the last look."""

    def __init__(self, path: Path) -> None:
        """Follows a file, which need not exist yet."""
        self._path = path
        self._offset = 0
        self._file: int | None = None

    @property
    def offset(self) -> int:
        """Bytes read so far, up to the end of a line."""
        return self._offset

    def pass_to(self, offset: int) -> None:
        """Takes the file for read up to here: the end of a line."""
        self._offset = offset

    def size(self) -> int:
        """Returns the file's bytes now; 0: there is none."""
        try:
            return self._path.stat().st_size
        except OSError:
            return 0

    def lines(self) -> bytes | None:
        """Returns some of the new whole lines, in order; b"": there are no more now; None: it is another file now."""
        try:
            with self._path.open("rb") as file:
                status = self._path.stat()
                is_other = self._file is not None and status.st_ino != self._file
                if is_other or status.st_size < self._offset:
                    self._file, self._offset = None, 0
                    return None
                self._file = status.st_ino
                file.seek(self._offset)
                piece = file.read(PIECE_BYTES)
                if len(piece) == PIECE_BYTES and b"\n" not in piece:
                    piece += file.readline()
        except OSError:
            return b""
        whole = piece[: piece.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole
