"""Devices of nodes: the same history on nodes of several, some of which are lost alone, and come back."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec

from tests.testkit.schedules.faults import Fault, FaultKind
from tests.testkit.schedules.manners import when
from tests.testkit.schedules.setup import Setup


def on_devices(setup: Setup, devices: int, *, spreads_optimizer: bool = False) -> Setup:
    """Returns the setup with so many times the devices, as many to a stage."""
    per_stage, per_node = devices * setup.devices_per_stage, devices * setup.devices_per_node
    return msgspec.structs.replace(
        setup, devices_per_stage=per_stage, devices_per_node=per_node, spreads_optimizer=spreads_optimizer
    )


def with_devices_alone(draw: Random, setup: Setup, faults: Sequence[Fault]) -> list[Fault]:
    """Returns the faults with some nodes' deaths and hangs in a device of theirs alone, and devices that come back."""
    found: list[Fault] = []
    for fault in faults:
        if fault.kind not in (FaultKind.KILL, FaultKind.HANG) or not fault.nodes or draw.random() < 0.4:
            found.append(fault)
            continue
        alone = msgspec.structs.replace(fault, device=draw.randrange(setup.devices_per_node))
        found.append(alone)
        if draw.random() < 0.3:
            found.append(msgspec.structs.replace(fault, device=draw.randrange(setup.devices_per_node)))
        if draw.random() < 0.6:
            found.append(_back(draw, alone))
    node = draw.randrange(setup.num_nodes)
    beside = when(draw, setup, node, kind=FaultKind.KILL, nodes=(node,))
    beside = msgspec.structs.replace(beside, device=draw.randrange(setup.devices_per_node))
    return [*found, beside, _back(draw, beside)]


def _back(draw: Random, alone: Fault) -> Fault:
    """Returns the order to start the device again, some time after its loss, or when a new plan does without it."""
    back = msgspec.structs.replace(alone, kind=FaultKind.BACK, for_s=0.0)
    if draw.random() < 0.5:
        return msgspec.structs.replace(back, at="Recovered", nth=draw.choice([1, 1, 2]), delay_s=0.0)
    return msgspec.structs.replace(back, delay_s=alone.delay_s + draw.choice([0.06, 0.1, 0.3]))
