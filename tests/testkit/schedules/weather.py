"""Weather: how long things take in a simulated cluster, and what its machines are like."""

from __future__ import annotations

import msgspec


class Weather(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The mean virtual seconds of what happens, and habits.

    Attributes:
        compute_s: of one layer's forward or backward for one microbatch.
        network_s: of a message between workers.
        control_s: of a message to or from the coordinator.
        detect_s: from a process's end to the launcher's news of it.
        start_s: from a process's start to its hello.
        spread: times vary from nothing to so many times the mean; now and then much more.
        is_one_host: workers read each other's sums in place.
        is_remote: nobody can kill a node, or see whether its processes are runnable.
        is_as_profiled: computing takes as long as the profile says, but for a few per cent; else `compute_s`.
        is_wired: control messages travel as bytes, and plans as what differs from the one before.
        drift: share by which hosts' clocks run too fast or too slow, at most; with any, they begin anywhere.
        patience_s: for how long a coordinator that hears of nobody judges nobody.
        writes_later: a checkpoint's manifest is written beside everything else, not at once.
        is_exact: nothing varies: what the profile has times for (computing, messages, sums, the optimizer) takes
            those, and all else its mean. So what happens is what the estimator says, or the estimator is wrong.
    """

    compute_s: float = 1e-3
    network_s: float = 1e-3
    control_s: float = 1e-3
    detect_s: float = 3e-3
    start_s: float = 1e-2
    spread: float = 4.0
    is_one_host: bool = False
    is_remote: bool = False
    is_as_profiled: bool = False
    is_wired: bool = False
    writes_later: bool = False
    is_exact: bool = False
    drift: float = 0.0
    patience_s: float = 0.0
