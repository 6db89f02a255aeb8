"""Memory limits: workers that ran out of memory, what that says of the next plan, and when a job must end.

A plan that puts as much on another device as was too much for the first one loses that device too, then the next, in
the end every replica. So a shortage sets a bound for the plans that follow, and a job for which none is left within it
is saved and ends. The bound is an estimate (`planaria.estimate.memory`): it compares what plans put on devices, and is
no measure of what a device has. Devices are taken to be alike. Pure; it never asks how much memory there is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from planaria.estimate.memory import worker_memory_bytes
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import NodeId, Plan, PlanError, WorkerId
from planaria.plan.quantities import size
from planaria.policy.interface import Policy
from planaria.protocol.messages.events import NodeGone
from planaria.protocol.messages.run_measurements import KnownShortages, MemoryShortage
from planaria.protocol.thresholds import PLANS_CARRIED, SOON_STEPS

REMEDY = (
    "Add nodes and go on by --resume; or, in a new run, set train.activation_checkpointing = true or a smaller "
    "train.microbatch. cluster.memory_gb keeps plans within what a device has"
)


class WouldRunOut(PlanError):
    """Raised when every plan left puts more on some device than was too much for another."""


class Shortages:
    """Memory shortages of one run, and the bound that they set for its plans.

    Args:
        profile: costs as the job runs; None: nothing is known of what a plan needs, and no plan is refused.
        within: a policy whose plans keep to so many bytes on a device; may raise PlanError. None: there is none.
        audit: share of all computation that other workers run again.

    Attributes:
        bound_bytes: the most that a plan may put on a device by estimate; None while nobody ran out.
        fatal: why the job must end, once it must.
    """

    def __init__(
        self,
        profile: ModelProfile | None = None,
        within: Callable[[int], Policy] | None = None,
        *,
        audit: float = 0.0,
    ) -> None:
        self._profile = profile
        self._audit = audit
        self._within = within
        self._carried: deque[Plan] = deque(maxlen=PLANS_CARRIED)
        self._short: dict[NodeId, MemoryShortage] = {}
        self._short_devices: dict[NodeId, MemoryShortage] = {}
        """Shortages of nodes that went on without the device that ran out."""
        self.bound_bytes: int | None = None
        self.fatal: str | None = None

    @property
    def learnt(self) -> KnownShortages:
        """Known shortages, for the next coordinator."""
        return KnownShortages(
            bound_bytes=self.bound_bytes, nodes=(*self._short.values(), *self._short_devices.values())
        )

    def recall(self, learnt: KnownShortages, carried: Iterable[Plan]) -> None:
        """Takes over what the last coordinator knew, and the plans under which steps were committed, in order."""
        self.bound_bytes = learnt.bound_bytes
        for shortage in learnt.nodes:
            self._see_a_pattern(shortage)
            self._short[shortage.node] = shortage
        for plan in carried:
            self.committed(plan)

    def plan_by(self, within: Callable[[int], Policy]) -> None:
        """Records how to make plans within a bound under the policy now in force."""
        self._within = within

    def committed(self, plan: Plan) -> None:
        """Records that a step was committed under this plan: its devices can hold what it puts on them."""
        if not self._carried or self._carried[-1] is not plan:
            self._carried.append(plan)

    def note(self, event: NodeGone, plan: Plan | None, step: int, *, is_alone: bool = False) -> NodeGone:
        """Records that a node ran out of memory in this step under this plan (None: before there was one).

        Returns the event as of an ordinary loss, its cause in full. `is_alone`: one device did, and the others go on,
        so that what they carry counts.
        """
        assert event.ran_out is not None
        told = event.ran_out
        planned = self._planned(plan, event.node, told.worker)
        needed = told.held_bytes + told.wanted_bytes
        text = _text(event.cause, told.where, planned, told.held_bytes, told.wanted_bytes)
        if plan is None or event.node in plan.nodes:
            shortage = MemoryShortage(node=event.node, step=step, text=text)
            self._see_a_pattern(shortage)
            (self._short_devices if is_alone else self._short)[event.node] = shortage
        if planned:
            self._learn(planned, needed)
        return replace(event, cause=text, ran_out=None)

    def _see_a_pattern(self, latest: MemoryShortage) -> None:
        for earlier in (*self._short.values(), *self._short_devices.values()):
            is_soon = abs(latest.step - earlier.step) <= SOON_STEPS
            if is_soon and earlier.node != latest.node and self.fatal is None:
                self.fatal = (
                    f"nodes {earlier.node} and {latest.node} ran out of memory within {SOON_STEPS} steps, so the "
                    f"others would too. Node {earlier.node}, step {earlier.step}: {earlier.text}. "
                    f"Node {latest.node}, step {latest.step}: {latest.text}. {REMEDY}"
                )

    def _learn(self, planned: int, needed: int) -> None:
        """Lowers the bound for the next plans: to less than what failed, or to as much as another device carried.

        Where another one carried as much, the load alone was not the reason: then what failed is what the worker
        really needed, if that is more.
        """
        loads = [self.loads(plan) for plan in self._carried]
        carried = max((size for load in loads for size in load.values()), default=0)
        failed = max(planned, needed) if carried >= planned else planned
        bound = max(carried, failed - 1)
        self.bound_bytes = bound if self.bound_bytes is None else min(self.bound_bytes, bound)

    def _planned(self, plan: Plan | None, node: NodeId, worker: WorkerId | None) -> int:
        """Returns the bytes planned for the worker, or the most on its node if the worker is unknown; 0: not known."""
        if plan is None or self._profile is None:
            return 0
        workers = [w for w in plan.workers if plan.node_of(w) == node and worker in (None, w)]
        return max((worker_memory_bytes(plan, self._profile, w, self._audit) for w in workers), default=0)

    def loads(self, plan: Plan) -> Mapping[WorkerId, int]:
        """Returns estimated bytes on the device of each worker whose node has not run out."""
        if self._profile is None:
            return {}
        others = [worker for worker in plan.workers if plan.node_of(worker) not in self._short]
        return {worker: worker_memory_bytes(plan, self._profile, worker, self._audit) for worker in others}

    # What may follow

    def allows(self, plan: Plan) -> bool:
        """Returns whether the plan keeps within the bound."""
        return self.bound_bytes is None or self._most(plan) <= self.bound_bytes

    def policy(self) -> Policy:
        """Returns a policy that keeps within the bound. Raises PlanError if there is none."""
        assert self.bound_bytes is not None
        if self._within is None:
            raise PlanError("no policy keeps to a bound of memory")
        return self._within(self.bound_bytes)

    def refuse(self, plan: Plan) -> WouldRunOut:
        """Returns the error that says why no plan is left: this one is next, and another device could not hold it."""
        assert self.bound_bytes is not None
        latest = max((*self._short.values(), *self._short_devices.values()), key=lambda shortage: shortage.step)
        return WouldRunOut(
            f"node {latest.node} ran out of memory in step {latest.step}: {latest.text}. The next plan would put "
            f"{size(self._most(plan))} on a device, and no more than {size(self.bound_bytes)} is known to fit, so the "
            f"others would run out too. {REMEDY}"
        )

    def _most(self, plan: Plan) -> int:
        return max(self.loads(plan).values(), default=0)


def _text(cause: str, where: str, planned: int, held: int, wanted: int) -> str:
    parts = [f"{size(held)} held"] if held else []
    parts += [f"{size(wanted)} more asked for"] if wanted else []
    parts += [f"{size(planned)} planned"] if planned else []
    place = f" {where}" if where else ""
    return f"{cause}{place}" + (f" ({', '.join(parts)})" if parts else "")
