"""Cables on which whatever hosts send takes its time: frames go from one tap device to another through this process.

`python -m tests.e2e.long_cables SECONDS SWITCH HOST=NAME ...`: SWITCH and HOST are processes that hold network
namespaces. Each host gets an `eth0`, and the switch's namespace its other end, NAME. Says "ready" when they are there.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import selectors
import struct
import sys
import time
from collections import deque

CLONE_NEWNET = 0x40000000
TUNSETIFF, TUNSETVNETHDRSZ, TUNSETOFFLOAD = 0x400454CA, 0x400454D8, 0x400454D0
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4 = 0x01, 0x02
MOST_BYTES = 1 << 17
"""More than the largest frame, which is not cut into packets before a real cable would need it."""


def tap(namespace: int, name: str) -> int:
    """A new network device in the namespace of a process; its file descriptor."""
    with open(f"/proc/{namespace}/ns/net") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(device, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4)
    return device


def pass_on(cables: dict[int, int], delay_s: float) -> None:
    """For ever. `cables`: from each host's end to the switch's; the way back takes no time."""
    back = {switch: host for host, switch in cables.items()}
    selector = selectors.DefaultSelector()
    for device in (*cables, *back):
        selector.register(device, selectors.EVENT_READ)
    waiting: deque[tuple[float, int, bytes]] = deque()
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for key, _ in selector.select(timeout):
            with contextlib.suppress(BlockingIOError):
                while True:
                    frame = os.read(key.fd, MOST_BYTES)
                    if key.fd in cables:
                        waiting.append((time.monotonic() + delay_s, cables[key.fd], frame))
                    else:
                        _write(back[key.fd], frame)
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, device, frame = waiting.popleft()
            _write(device, frame)


def _write(device: int, frame: bytes) -> None:
    with contextlib.suppress(OSError):  # the device is down: the frame is lost, as on a cable that is pulled
        os.write(device, frame)


def main(seconds: str, switch: str, *hosts: str) -> None:
    cables = {}
    for host in hosts:
        namespace, _, name = host.partition("=")
        cables[tap(int(namespace), "eth0")] = tap(int(switch), name)
    print("ready", flush=True)
    pass_on(cables, float(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
