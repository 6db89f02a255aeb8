"""Records of a run, for the tests of what is made of them."""

from __future__ import annotations

from planaria.protocol.messages.records import StepCommitted


def committed(step: int, duration_s: float = 1.0) -> StepCommitted:
    return StepCommitted(
        step=step,
        loss=1.0,
        grad_norm=1.0,
        learning_rate=1e-3,
        clip_factor=1.0,
        generation=1,
        live_nodes=3,
        duration_s=duration_s,
        tokens_per_s=1.0,
    )
