"""Oobleck's divide and conquer, from section 4.1.2 of the paper (Equations 1 to 4): an oracle, slow and heuristic.

A sub-problem (S', u, v, first device, d) keeps one solution, the one of least T1 + T2 + T3 with N_b = 4 S'. That is
what makes it a heuristic: the best whole need not be made of the best parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from planaria.plan.costs.model_profile import ModelProfile


@dataclass(frozen=True)
class Part:
    t1: float
    t2: float
    t3: float
    slowest: int
    slowest_s: float
    stages: tuple[float, ...]

    @property
    def total(self) -> float:
        return self.t1 + self.t2 + self.t3


def divide_and_conquer(profile: ModelProfile, nodes: int, per_node: int) -> Part | None:
    """The best solution over S = n .. L that the paper's recursion finds; None where there is none."""

    def compute(u: int, v: int, d: int) -> float:
        return sum(layer.on(d).forward_s + layer.on(d).backward_s for layer in profile.layers[u:v])

    @cache
    def solve(num: int, u: int, v: int, first: int, d: int) -> Part | None:
        if num == 1:
            if d not in profile.device_counts or first // per_node != (first + d - 1) // per_node:
                return None
            time = compute(u, v, d)
            return Part(time, 2 * time, time, 0, time, (time,))
        best: Part | None = None
        for s in range(1, num):
            for k in range(u + s, v - (num - s) + 1):
                for m in range(s, d - (num - s) + 1):
                    left = solve(s, u, k, first, m)
                    right = solve(num - s, k, v, first + m, d - m) if left else None
                    if left and right:
                        both = combine(left, right)
                        if best is None or both.total < best.total:
                            best = both
        return best

    solutions = [solve(num, 0, profile.num_layers, 0, nodes * per_node) for num in range(nodes, profile.num_layers + 1)]
    return min((part for part in solutions if part), key=lambda part: part.total, default=None)


def combine(left: Part, right: Part) -> Part:
    num = len(left.stages) + len(right.stages)
    first_half = left.slowest_s > right.slowest_s
    slowest = left.slowest if first_half else len(left.stages) + right.slowest
    time = left.slowest_s if first_half else right.slowest_s
    return Part(
        t1=left.t1 + right.t1,
        t2=(4 * num - num + slowest - 1) * time,
        t3=left.t3 + right.t1 if first_half else right.t3,
        slowest=slowest,
        slowest_s=time,
        stages=left.stages + right.stages,
    )
