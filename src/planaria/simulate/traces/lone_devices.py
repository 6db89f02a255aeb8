"""Losses of devices alone that are made up: each device of a node that is there goes by chance, and may come back."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec

from planaria.simulate.traces.trace import HOUR_S, Change, DeviceChange, DeviceEvent, Trace


def with_lone_devices(
    trace: Trace, devices_per_node: int, hourly: float, return_s: float | None, *, seed: int
) -> Trace:
    """Returns the trace with losses of devices of nodes that are there.

    Args:
        trace: of nodes.
        devices_per_node: on each.
        hourly: the share of the devices that goes alone in an hour, at any moment as likely as at another.
        return_s: mean seconds until a device is started again; None: only with another node.
        seed: of what is drawn.
    """
    draw = random.Random(f"devices {seed}")
    came: dict[str, float] = {}
    found: list[DeviceEvent] = []
    for event in trace.events:
        if event.change is Change.ADD:
            came[event.node] = event.at_s
        else:
            found += _lost(draw, event.node, came.pop(event.node), event.at_s, devices_per_node, hourly, return_s)
    for node, at_s in came.items():
        found += _lost(draw, node, at_s, trace.horizon_s, devices_per_node, hourly, return_s)
    found.sort(key=lambda event: event.at_s)
    return msgspec.structs.replace(trace, device_events=tuple(found))


def _lost(
    draw: random.Random, node: str, came_s: float, went_s: float, devices: int, hourly: float, return_s: float | None
) -> Iterator[DeviceEvent]:
    """Yields what befalls the devices of a node while it is there."""
    for device in range(devices):
        at_s = came_s + draw.expovariate(hourly / HOUR_S)
        while at_s < went_s:
            yield DeviceEvent(at_s=at_s, change=DeviceChange.LOST, node=node, device=device)
            if return_s is None:
                break
            at_s += draw.expovariate(1 / return_s) if return_s else 0.0
            if at_s >= went_s:
                break
            yield DeviceEvent(at_s=at_s, change=DeviceChange.JOINED, node=node, device=device)
            at_s += draw.expovariate(hourly / HOUR_S)
