"""What checksums of messages cost: frames over a loopback connection with and without them, in turn.

    python benchmarks/checksums.py

Prints the median time of a frame, and the ratio.
"""

from __future__ import annotations

import argparse
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
        frames.read_data(receiver, 1 << 30)
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
    with_sums, without = (frames._sum, frames._read_and_sum), (lambda views: 0, read_only)
    for name, size in SIZES.items():
        tensor = torch.randn(size // 4)
        times: dict[str, list[float]] = {"with": [], "without": []}
        for _ in range(repeats):
            for way, (summed, read) in {"with": with_sums, "without": without}.items():
                frames._sum, frames._read_and_sum = summed, read  # type: ignore[assignment]
                times[way].append(one_way(sender, receiver, tensor))
        medians = {way: statistics.median(seconds) for way, seconds in times.items()}
        for way, seconds in medians.items():
            print(f"checksums.one-way.{name}.{way} {seconds * 1e6:.1f} us")
        print(f"checksums.one-way.{name}.ratio {medians['with'] / medians['without']:.3f}")


def read_only(sock: socket.socket, views: list[memoryview]) -> int:
    """As before there were checksums: each tensor at once."""
    for view in views:
        frames.read_into(sock, view)
    return 0


if __name__ == "__main__":
    main()
