"""Warming up: the plan for the step before the placement changes, while everybody trains on as before.

Workers that will own more layers under the next plan get their state beside the compute of a step, as shadows: the
state travels while the others compute, and the step's own sums bring it up to date. Nobody waits for a transfer, unless
it takes longer than the step.
"""

from __future__ import annotations

import msgspec

from planaria.plan.plan import Plan, runs_of


def warm_up(plan: Plan, target: Plan, generation: int) -> Plan:
    """`plan`, with what the workers of `target` lack as shadows and `target`'s transfers.

    Args:
        plan: in force, all of its workers live.
        target: for the steps after; its transfers bring what its workers lack.
        generation: of the result.
    """
    own = {worker: set(plan.layers_of.get(worker, ())) for worker in {*plan.workers, *target.workers}}
    lacking = {worker: set(layers) - own[worker] for worker, layers in target.layers_of.items()}
    computing = plan.shadows if plan.redundancy is not None else ()
    for shadow in (*computing, *target.shadows):
        lacking.setdefault(shadow.worker, set()).update(set(shadow.layers) - own[shadow.worker])
    devices = plan.devices_of | target.devices_of
    shadows = tuple(
        run for worker, layers in sorted(lacking.items()) for run in runs_of(worker, layers, devices[worker])
    )
    return msgspec.structs.replace(
        plan,
        generation=generation,
        shadows=shadows,
        transfers=target.transfers,
        sync_epochs=(generation,) * len(plan.groups),
    )
