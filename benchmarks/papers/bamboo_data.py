"""Figures of Bamboo (Thorpe et al., NSDI 2023), as its paper prints them."""

from __future__ import annotations

from typing import Final, NamedTuple

SPOT_PER_HOUR: Final = 0.918
DEMAND_PER_HOUR: Final = 3.06
"""Dollars of one V100 (section 6)."""


class Model(NamedTuple):
    """A row of Table 1, and the same model trained on demand on single-GPU nodes (Demand-S of Table 2).

    Attributes:
        samples: until the target accuracy.
        num_pipelines: D.
        depth: P, which is 1.5 times that of the on-demand run.
        demand: samples a second of Demand-S.
        overhead: of eager FRC and lazy BRC on the step (Table 4), of this kind of model.
    """

    samples: int
    num_pipelines: int
    depth: int
    demand: float
    overhead: float


MODELS: Final = {
    "ResNet": Model(300_000, 4, 12, 32.0, 0.0951),
    "VGG": Model(1_000_000, 4, 6, 167.0, 0.0951),
    "AlexNet": Model(1_000_000, 4, 6, 336.0, 0.0951),
    "GNMT": Model(200_000, 4, 6, 24.0, 0.1977),
    "BERT": Model(2_500_000, 4, 12, 108.0, 0.1977),
    "GPT": Model(500_000, 4, 12, 30.0, 0.1977),
}

RATES: Final = (0.10, 0.16, 0.33)
"""Of the three segments of the trace, nodes an hour (section 6.1)."""


class Spot(NamedTuple):
    """Of the three segments."""

    throughput: tuple[float, float, float]
    cost: tuple[float, float, float]
    value: tuple[float, float, float]


_COST_48: Final = (42.23, 40.39, 36.72)
_COST_32: Final = (20.19, 19.28, 18.36)
TABLE_2: Final = {
    "ResNet": Spot((21.67, 19.41, 12.13), _COST_48, (0.51, 0.48, 0.33)),
    "VGG": Spot((153.31, 124.88, 98.21), _COST_32, (7.59, 6.48, 5.35)),
    "AlexNet": Spot((340.32, 321.65, 280.42), _COST_32, (16.86, 16.68, 15.27)),
    "GNMT": Spot((18.92, 16.31, 8.80), _COST_32, (0.94, 0.85, 0.48)),
    "BERT": Spot((98.87, 83.70, 60.59), _COST_48, (2.34, 2.07, 1.65)),
    "GPT": Spot((29.92, 22.68, 13.78), _COST_48, (0.71, 0.56, 0.38)),
}
"""Bamboo-S."""
DEMAND_COST: Final = {"ResNet": 97.92, "VGG": 48.96, "AlexNet": 48.96, "GNMT": 48.96, "BERT": 97.92, "GPT": 97.92}
"""Dollars an hour of Demand-S (Table 2)."""


class Simulated(NamedTuple):
    """A row of Table 3a: means over 1,000 runs."""

    preemptions: float
    interval_h: float
    lifetime_h: float
    fatal: float
    nodes: float
    throughput: float
    cost: float
    value: float


TABLE_3A: Final = {
    0.01: Simulated(8.50, 2.08, 15.20, 0.06, 45.18, 87.99, 41.11, 2.10),
    0.05: Simulated(48.15, 0.44, 10.14, 0.23, 43.65, 76.35, 39.73, 1.90),
    0.10: Simulated(99.77, 0.23, 6.71, 0.29, 41.69, 72.12, 37.94, 1.88),
    0.25: Simulated(276.52, 0.10, 3.13, 1.04, 35.80, 60.12, 32.58, 1.82),
    0.50: Simulated(709.83, 0.06, 1.49, 5.98, 26.96, 40.37, 24.53, 1.59),
}

TABLE_3B: Final = {
    0.01: (54.87, 90.73, 0.60),
    0.05: (50.66, 87.43, 0.58),
    0.10: (49.18, 83.23, 0.59),
    0.25: (40.59, 71.24, 0.57),
    0.50: (26.24, 53.05, 0.49),
}
"""Throughput, cost an hour and value with pipelines of P_h = 3.06 / 0.918 x 8 stages. (The table's fourth row is marked
0.10 like the third; by its cost it is 0.25's.)"""
DEPTH_ON_DEMAND: Final = 8
DEPTH_H: Final = round(DEMAND_PER_HOUR / SPOT_PER_HOUR * DEPTH_ON_DEMAND)

FIGURE_3_USEFUL: Final = 0.23
FIGURE_3_BAMBOO: Final = 0.84
"""Shares of the time in which training makes progress, GPT-2 on 64 P3 instances (sections 3 and 6.3)."""
FIGURE_3_NODES: Final = 64

OVER_VARUNA: Final = {0.10: (2.5, 1.67), 0.16: (2.7, 1.64)}
"""Bamboo-S's throughput and value over Varuna's, BERT, by rate (section 6.3, Figure 12). At 33% Varuna hung."""
RECONFIGURATION_SHARE: Final = 0.07
"""Of the time, on average over the runs of Table 2 at 10% (section 6.1)."""

TABLE_5: Final = {"BERT": (148.923, 151.124), "VGG19": (160.12, 165.77)}
"""Throughput with nodes of all zones, and with nodes of one (section 6.5)."""

TABLE_6: Final = {
    "ResNet": {
        "Demand": ((24.51,) * 3, (24.48,) * 3, (1.01,) * 3),
        "Checkpoint": ((12.26, 8.42, 5.03), (7.34,) * 3, (1.67, 1.15, 0.68)),
        "Bamboo": ((21.22, 18.31, 12.31), (10.56, 10.09, 9.18), (2.01, 1.84, 1.34)),
    },
    "VGG": {
        "Demand": ((144.28,) * 3, (24.48,) * 3, (5.89,) * 3),
        "Checkpoint": ((83.21, 67.21, 45.31), (7.34,) * 3, (11.33, 9.15, 6.17)),
        "Bamboo": ((125.59, 96.51, 73.73), (10.56, 10.09, 9.18), (11.89, 9.56, 8.03)),
    },
}
"""Pure data parallelism with 8 workers (12 for Bamboo): throughput, cost and value at the three rates."""

TABLE_2_M: Final = {
    "ResNet": Spot((19.35, 15.69, 8.22), (44.33, 40.01, 37.21), (0.43, 0.39, 0.22)),
    "VGG": Spot((93.34, 75.75, 64.22), (21.31, 19.55, 18.43), (4.38, 4.11, 3.48)),
    "AlexNet": Spot((271.06, 207.43, 143.57), (21.31, 19.55, 18.43), (12.72, 10.61, 7.79)),
    "GNMT": Spot((13.95, 10.82, 6.33), (21.31, 19.55, 18.43), (0.65, 0.55, 0.34)),
    "BERT": Spot((71.22, 56.41, 41.68), (44.33, 40.01, 37.21), (1.61, 1.41, 1.12)),
    "GPT": Spot((17.73, 14.00, 11.54), (44.33, 40.01, 37.21), (0.40, 0.35, 0.31)),
}
"""Bamboo-M, on nodes of four GPUs."""
DEMAND_M: Final = {"ResNet": 30.0, "VGG": 197.0, "AlexNet": 359.0, "GNMT": 27.0, "BERT": 118.0, "GPT": 32.0}
"""Samples a second of Demand-M."""
GPUS_M: Final = 4

FIGURE_14_COVERED: Final = {"first": 1.0, "last": 0.6}
"""Of successors' forwards, what bubbles of the first and the last four of 8 stages hold (appendix C.1, in words)."""
