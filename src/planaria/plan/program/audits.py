"""Audits: which computations of a step are run a second time, by whom, and what that adds to workers' programs.

An audit is one piece of a route's hop, for one microbatch, forwards and backwards. Its worker sends copies of what goes
in (the activation from below, the gradient from above) to a worker of another node that owns the same layers. That one
runs them once more at the end of its program, before its vote. Both tell digests of what they were given and of what
they made. So an audit needs nothing of other workers, and tells of one worker alone: a wrong input is a matter of the
audit of the layer that made it. Nobody waits for an audit but the vote, so no order of programs depends on it.

What devices that share microbatches compute together is one computation, of the first of them, which sends the copies;
one device of another node runs all of it. Each of the stage tells what it has counted: the sum of that is compared.

Which are run is drawn from seed and step for each microbatch and hop, and told to workers with the plan or the commit
before. A plan that finishes a step that another one began has none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

import msgspec

from planaria.plan.plan import Plan, Stage, WorkerId
from planaria.plan.program.instructions import Instruction, Op, Program
from planaria.plan.program.routes import merge_hops


class Audit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One computation that is run again.

    Attributes:
        microbatch: whose forward and backward it is.
        born: generation in which the microbatch's route was made.
        first_layer: lowest layer that is run again.
        end_layer: one above the highest.
        worker: the one whose work is audited; of several that share microbatches the first.
        by: those that run it again.
    """

    microbatch: int
    born: int
    first_layer: int
    end_layer: int
    worker: WorkerId
    by: tuple[WorkerId, ...]


def audits_of(
    plan: Plan, seed: int, step: int, share: float, *, auditors: int = 1, wholly: Collection[WorkerId] = ()
) -> tuple[Audit, ...]:
    """Returns the audits of a step that begins under the plan.

    Args:
        plan: whose step it is.
        seed: of the job.
        step: the step.
        share: of all computation that is audited, from 0 to 1.
        auditors: how many workers run each audit, where there are as many.
        wholly: workers all of whose computation is audited.
    """
    if not (share or wholly) or plan.evaluation is not None:
        return ()
    of_step = _mixed(_mixed(seed) + step)
    below = int(share * _NUMBERS)
    owners = _Owners(plan)
    found: list[Audit] = []
    for route in plan.routes:
        if len(route.counted) < plan.num_layers:
            continue  # some of its work was done before
        passed = frozenset(hop.worker for hop in route.hops)
        for hop in merge_hops(route.hops):
            for microbatch in route.microbatches:
                drawn = _mixed(of_step + microbatch * plan.num_layers + hop.first_layer)
                if hop.worker in wholly or drawn < below:
                    for first, end, able in owners.pieces(hop, passed):
                        turn = (microbatch + step) % len(able)
                        by = (*able[turn:], *able[:turn])[:auditors]
                        found.append(Audit(microbatch, route.born, first, end, hop.worker, by))
    return tuple(found)


_NUMBERS = 1 << 64


def _mixed(number: int) -> int:
    """Returns a number below 2**64 that shows nothing of the one that it is made of (SplitMix64)."""
    number = (number + 0x9E3779B97F4A7C15) % _NUMBERS
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 % _NUMBERS
    number = (number ^ number >> 27) * 0x94D049BB133111EB % _NUMBERS
    return number ^ number >> 31


def unaudited(plan: Plan) -> tuple[int, ...]:
    """Returns the layers that some worker runs and no other node could run again."""
    owners, lacking = _Owners(plan), set[int]()
    for hops in {route.hops for route in plan.routes}:
        passed = frozenset(hop.worker for hop in hops)
        for hop in merge_hops(hops):
            covered = {layer for first, end, _ in owners.pieces(hop, passed) for layer in range(first, end)}
            lacking |= {*hop.layers} - covered
    return tuple(sorted(lacking))


@lru_cache(maxsize=4)
def audit_turns(plan: Plan) -> Mapping[WorkerId, Mapping[tuple[int, int], float]]:
    """Returns what each worker may be asked to run again: first layer and end of a piece -> in how many microbatches it
    would be its turn, were all audited."""
    owners, turns = _Owners(plan), dict[WorkerId, dict[tuple[int, int], float]]()
    for route in plan.routes:
        passed = frozenset(hop.worker for hop in route.hops)
        for hop in merge_hops(route.hops) if len(route.counted) == plan.num_layers else ():
            for first, end, able in owners.pieces(hop, passed):
                for worker in able:
                    mine = turns.setdefault(worker, {})
                    mine[first, end] = mine.get((first, end), 0.0) + len(route.microbatches) / len(able)
    return turns


_Piece = tuple[int, int, tuple[WorkerId, ...]]
"""First layer and end of what is audited at once, and who can run it."""


class _Owners:
    """Who could run again what a hop runs."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._known: dict[tuple[Stage, frozenset[WorkerId]], list[_Piece]] = {}
        self._of: list[dict[WorkerId, None]] = [{} for _ in range(plan.num_layers)]
        shadowed: dict[WorkerId, set[int]] = {}
        for stage in plan.shadows if plan.redundancy is not None else ():
            shadowed.setdefault(stage.worker, set()).update(stage.layers)
        for worker, layers in plan.layers_of.items():
            # Who runs a layer as a shadow may run the very same work already.
            for layer in sorted(set(layers) - shadowed.get(worker, set())):
                self._of[layer][worker] = None

    def pieces(self, hop: Stage, passed: frozenset[WorkerId]) -> list[_Piece]:
        """Returns the pieces of a hop, each as long as one other worker can run it; `passed`: workers of the route."""
        known = self._known.get((hop, passed))
        return self._cut(hop, passed) if known is None else known

    def _cut(self, hop: Stage, passed: frozenset[WorkerId]) -> list[_Piece]:
        node = self._plan.node_of(hop.worker)
        pieces: list[_Piece] = []
        at = hop.first_layer
        while at < hop.end_layer:
            others = [w for w in self._of[at] if self._plan.node_of(w) != node]
            able = [worker for worker in others if self._plan.first_of(worker) not in passed]
            end = at + 1
            while able and end < hop.end_layer and (more := [w for w in able if w in self._of[end]]):
                able, end = more, end + 1
            if able:
                pieces.append((at, end, tuple(able)))
            at = end
        self._known[hop, passed] = pieces
        return pieces


def with_audits(program: Program, audits: Sequence[Audit], worker: WorkerId, plan: Plan) -> Program:
    """Returns a worker's program of a step of the plan with what the step's audits want of it. What the first of the
    devices that share microbatches sends, the others see as well, and send nothing."""
    first, num_layers = plan.first_of(worker), plan.num_layers
    mine = [audit for audit in audits if audit.worker == first]
    others = [audit for audit in audits if worker in audit.by]
    if not mine and not others:
        return program
    copies = _Copies(mine, num_layers, sends=worker == first)
    instructions: list[Instruction] = []
    for instruction in program:
        if instruction.op is Op.VOTE:
            instructions += [one for audit in others for one in _run_again(audit, num_layers)]
        instructions += copies.after(instruction)
    return tuple(instructions)


def _run_again(audit: Audit, num_layers: int) -> Iterator[Instruction]:
    """Yields what an auditor does."""
    microbatch, born, first, end = audit.microbatch, audit.born, audit.first_layer, audit.end_layer
    if first == 0 or end == num_layers:
        yield Instruction(op=Op.LOAD, microbatch=microbatch, born=born)
    for op, boundary in ((Op.RECV_ACTIVATION, first), (Op.RECV_GRADIENT, end)):
        if 0 < boundary < num_layers:
            yield Instruction(op=op, microbatch=microbatch, born=born, first_layer=boundary, peer=audit.worker)
    layers = tuple(range(first, end))
    yield Instruction(
        op=Op.AUDIT, microbatch=microbatch, born=born, first_layer=first, end_layer=end, counted=layers, keeps=True
    )


_CUT = (Op.FORWARD, Op.BACKWARD, Op.BACKWARD_INPUT)
"""Instructions between whose layers something is copied."""


class _Copies:
    """Says what a worker whose work is audited sends to auditors, and where it runs fewer layers at once for that, as
    all do that share it."""

    def __init__(self, audits: Sequence[Audit], num_layers: int, *, sends: bool) -> None:
        self._activations: dict[tuple[int, int], dict[int, list[WorkerId]]] = {}
        self._gradients: dict[tuple[int, int], dict[int, list[WorkerId]]] = {}
        for audit in audits:
            for to, boundary in ((self._activations, audit.first_layer), (self._gradients, audit.end_layer)):
                if 0 < boundary < num_layers:
                    at = to.setdefault((audit.microbatch, audit.born), {})
                    at.setdefault(boundary, []).extend(audit.by if sends else ())

    def after(self, instruction: Instruction) -> Iterator[Instruction]:
        """Yields the instruction, in pieces if need be, each with the copies that follow it."""
        work = instruction.microbatch, instruction.born
        match instruction.op:
            case Op.FORWARD | Op.RECV_ACTIVATION:
                wanted, op = self._activations.get(work, {}), Op.SEND_ACTIVATION
            case Op.BACKWARD | Op.BACKWARD_INPUT | Op.RECV_GRADIENT:
                wanted, op = self._gradients.get(work, {}), Op.SEND_GRADIENT
            case _:
                yield instruction
                return
        if instruction.op not in _CUT:
            yield instruction
            yield from _sent(op, instruction, instruction.first_layer, wanted)
            return
        first, end = instruction.first_layer, instruction.end_layer
        cuts = [first, *sorted(cut for cut in wanted if first < cut < end), end]
        pieces = list(pairwise(cuts))
        is_forward = op is Op.SEND_ACTIVATION
        for low, top in pieces if is_forward else reversed(pieces):
            counted = tuple(layer for layer in instruction.counted if low <= layer < top)
            yield msgspec.structs.replace(instruction, first_layer=low, end_layer=top, counted=counted)
            yield from _sent(op, instruction, top if is_forward else low, wanted)


def _sent(op: Op, of: Instruction, boundary: int, wanted: dict[int, list[WorkerId]]) -> Iterator[Instruction]:
    for peer in wanted.get(boundary, ()):
        yield Instruction(op=op, microbatch=of.microbatch, born=of.born, first_layer=boundary, peer=peer, keeps=True)
