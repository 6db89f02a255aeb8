"""Figures of Odyssey (Zhou et al.), as its paper prints them."""

from __future__ import annotations

from typing import Final, NamedTuple

NUM_DEVICES: Final = 32
HOURLY: Final = 0.10
HOURS: Final = 9.0
GLOBAL_BATCH: Final = 64
"""The largest of "16 to 64"; microbatches of 1 (section V-A)."""

OVER_OOBLECK: Final = 1.229
OVER_RECYCLE: Final = 1.355
"""Average throughput over 9 hours (Figure 9, section V-B)."""

RECOVERY_S: Final = (11.2, 8.2)
"""Without and with matched transfers, 16 layers on 8 devices (section V-C)."""
TRANSFER_CUT: Final = 0.3235
"""By which matched transfers are shorter."""
LAYERS_OF_RECOVERY: Final = 16

TABLE_1: Final = {
    "Bamboo": ("9.5-20%", "short pause", "returns to high-overhead state", "1.5x"),
    "Varuna": ("none", "restart from checkpoint", "runs new optimal configuration", "none"),
    "Oobleck": ("offline planning", "copy from live replicas", "runs new heterogeneous pipelines", "none"),
    "ReCycle": ("none", "on-the-fly rerouting", "continuous adapted execution", "none"),
}
"""Time overhead without failures, while one is handled, and after it; memory overhead without failures. (Memory while a
failure is handled and after it is words that say nothing of how much.)"""


class Setting(NamedTuple):
    """A parallel configuration (PP, DP, TP) of section V-A."""

    stages: int
    pipelines: int
    tensor: int

    @property
    def devices(self) -> int:
        return self.stages * self.pipelines * self.tensor

    @property
    def is_one_host(self) -> bool:
        """Whether all of it is on one host of eight devices."""
        return self.devices <= 8


FIGURE_6: Final = {Setting(4, 2, 1): 0.9622, Setting(4, 4, 1): 0.89, Setting(2, 2, 8): 0.7438}
"""Throughput after one failure, as a share of that before (section V-B)."""
ESTIMATE_ERROR: Final = 0.0802
"""The largest error of its estimates of a step, before and after recovery (section V-C)."""
BATCHES: Final = (16, 32, 64)
"""Global batches of section V-A, microbatches of 1."""
FIGURE_12_BEFORE: Final = (4, 2)
"""DP and PP on 8 devices (section V-D)."""
FIGURE_12_AFTER: Final = "2, 2 and 3"
