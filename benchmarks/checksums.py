"""What checksums of messages cost: frames over a loopback connection with and without them, in turn.

    python benchmarks/checksums.py

Prints the median time of a frame, and the ratio.
"""

from __future__ import annotations

import argparse
import select
import socket
import statistics
import threading
import time

import torch

from planaria.runtime.worker.transport import frames
from planaria.runtime.worker.transport.mailbox import Key, Kind

SIZES = {"64kB": 1 << 16, "1MB": 1 << 20, "16MB": 1 << 24}


def one_way(sender: socket.socket, receiver: socket.socket, tensor: torch.Tensor) -> float:
    """Seconds from the first byte to a frame that is read and checked."""
    key = Key(Kind.ACTIVATION, 0, 1, 1, 0, 0)
    took: list[float] = []

    def read() -> None:
        reader = frames.FrameReader(receiver, 1 << 30)
        while not list(reader.read()):
            select.select([receiver], [], [])
        took.append(time.perf_counter())

    thread = threading.Thread(target=read)
    thread.start()
    began = time.perf_counter()
    for piece in frames.data_frame(key, (tensor,)):
        sender.sendall(piece)
    thread.join()
    return took[0] - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=60, help="of each size (default: %(default)s)")
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        receiver, _ = listener.accept()
    sums = {"with": frames.xxhash, "without": NoSums}
    for name, size in SIZES.items():
        tensor = torch.randn(size // 4)
        times: dict[str, list[float]] = {"with": [], "without": []}
        for _ in range(repeats):
            for way, module in sums.items():
                frames.xxhash = module  # type: ignore[assignment]
                times[way].append(one_way(sender, receiver, tensor))
        medians = {way: statistics.median(seconds) for way, seconds in times.items()}
        for way, seconds in medians.items():
            print(f"checksums.one-way.{name}.{way} {seconds * 1e6:.1f} us")
        print(f"checksums.one-way.{name}.ratio {medians['with'] / medians['without']:.3f}")


class NoSums:
    """In place of the module of checksums: as before there were any."""

    @staticmethod
    def xxh3_64_intdigest(data: bytes) -> int:
        return 0

    class xxh3_64:  # noqa: N801
        def update(self, data: memoryview) -> None: ...

        def intdigest(self) -> int:
            return 0


if __name__ == "__main__":
    main()
