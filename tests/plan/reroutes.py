"""Plans as ReCycle makes them: even pipelines, and each dead worker's microbatches dealt out to its peers."""

from __future__ import annotations

from collections.abc import Collection
from math import ceil

from planaria.plan.plan import Pipeline, Plan, Route, ScheduleKind, Stage, WorkerId


def stage(pipeline: int, place: int, num_stages: int) -> Stage:
    """One layer a stage."""
    return Stage(worker=WorkerId(pipeline * num_stages + place), first_layer=place, end_layer=place + 1)


def rerouted(
    num_pipelines: int, num_stages: int, each: int, dead: Collection[tuple[int, int]], kind: ScheduleKind
) -> Plan:
    """`each`: microbatches of a pipeline; `dead`: (pipeline, place) of workers. Without parameters."""
    turns = [0] * num_stages
    live = [[p for p in range(num_pipelines) if (p, place) not in dead] for place in range(num_stages)]
    ways: dict[tuple[Stage, ...], list[int]] = {}
    for microbatch in range(num_pipelines * each):
        hops = []
        for place in range(num_stages):
            pipeline = microbatch // each
            if (pipeline, place) in dead:
                pipeline = live[place][turns[place] % len(live[place])]
                turns[place] += 1
            hops.append(stage(pipeline, place, num_stages))
        ways.setdefault(tuple(hops), []).append(microbatch)
    pipelines = [
        [stage(p, place, num_stages) for place in range(num_stages) if (p, place) not in dead]
        for p in range(num_pipelines)
    ]
    return Plan(
        generation=1,
        num_layers=num_stages,
        num_microbatches=num_pipelines * each,
        devices_per_node=1,
        groups=(),
        pipelines=tuple(Pipeline(stages=tuple(stages)) for stages in pipelines if stages),
        routes=tuple(
            Route(hops=hops, microbatches=tuple(microbatches), born=1, counted=tuple(range(num_stages)))
            for hops, microbatches in ways.items()
        ),
        sync_epochs=(),
        schedule=kind,
    )


def ideal(num_pipelines: int, num_stages: int, each: int, dead: Collection[tuple[int, int]]) -> int:
    """N_pp - 1 + max_i ceil(N_m N_dp / (N_dp - F_i)): the step in units of a stage's forward and backward."""
    failed = [sum(at == place for _, at in dead) for place in range(num_stages)]
    return num_stages - 1 + max(ceil(each * num_pipelines / (num_pipelines - f)) for f in failed)
