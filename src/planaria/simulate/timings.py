"""Timings that the simulation does not model, with their defaults and where those come from. Values only."""

from __future__ import annotations

import msgspec


class Timings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What takes how long, in seconds unless a name says otherwise.

    Attributes:
        detection_s: from a node's death until the coordinator knows. 0.05: a process that is seen to be gone, with room
            for a loaded machine (docs/figures/benchmarks.md, recovery); a host that goes silent takes
            resilience.heartbeat_timeout_s.
        decision_s: from the last report until the new plan is sent: the policy's own time. 0.01: decisions that were
            made in advance; `planaria.policy.forecast.USUAL_DECISION_S` is what one takes that was not.
        unprepared_s: the same where it cannot have been made in advance: several nodes were lost, or nobody was. 0: as
            long as the others, as it is where plans are not weighed.
        change_s: from the last vote under one plan to the first instruction under the next
            (`planaria.policy.forecast.CHANGE_S`).
        start_s: from a node's arrival in the trace until its workers have joined: image, process, model code. 30.
        restart_s: beside reading, from the decision to go back to a checkpoint until work begins
            (`planaria.policy.forecast.RESTORE_S`); a system that starts its processes anew has more.
        storage_bytes_per_s: of one node to and from the storage of checkpoints. 1e9: an object store on a 10 Gbit/s
            network.
        checkpoint_copy_bytes_per_s: of a device to host memory: training stands still while its state is copied.
            12e9: PCIe 3 with 16 lanes.
    """

    detection_s: float = 0.05
    decision_s: float = 0.01
    unprepared_s: float = 0.0
    change_s: float = 0.005
    start_s: float = 30.0
    restart_s: float = 1.0
    storage_bytes_per_s: float = 1e9
    checkpoint_copy_bytes_per_s: float = 12e9
