"""A plan on the wire, as what differs from the plan before it on the same connection.

After a loss most pipelines and routes are as before. Thousands of workers then get some kilobytes each in place of the
whole plan. This module owns the two directions of that, `difference` and `updated`, which give back the very message;
it knows no socket, and the protocol's machines never see an update. What is long even so goes compressed.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from planaria.plan.plan import Evaluation, Pipeline, Plan, Route, Stage, Transfer, WorkerId
from planaria.plan.program.audits import Audit
from planaria.plan.quantities import ranges
from planaria.protocol.messages.message import COMPRESSED_FROM_BYTES, MAX_FRAME_BYTES, Message, decoded, encode
from planaria.protocol.messages.to_worker import Challenge, PlanMessage, StateSource, ToWorker

Item = TypeVar("Item")


class Cut(msgspec.Struct, frozen=True, array_like=True):
    """A stage on the wire: a worker and its range of layers."""

    worker: WorkerId
    first_layer: int
    end_layer: int
    num_devices: int


class RouteUpdate(msgspec.Struct, frozen=True, array_like=True):
    """A route on the wire, where possible told by what the new plan's pipelines have already.

    Attributes:
        hops: number of the new plan's pipeline of which they are the stages, or the hops themselves.
        microbatches: ranges of them.
        born: the same field of the route.
        counted: as the route's; None: every layer.
        reached: the same field of the route.
    """

    hops: int | tuple[Cut, ...]
    microbatches: tuple[tuple[int, int], ...]
    born: int
    counted: tuple[int, ...] | None
    reached: int | None


class PlanUpdate(Message, frozen=True, kw_only=True, tag="plan_update"):
    """A `PlanMessage` as its difference from the one before it on the connection.

    Attributes:
        base: generation of that other one's plan.
        generation: the generation of the plan that this makes.
        pipelines: each a number of a pipeline there, or its stages.
        routes: each a number of a route there, or what it is.
        shadows: all shadows of the plan.
        layer_units: the plan's; None: as there.
        dropped: microbatches that the plan leaves out.
        num_evaluated: microbatches of the plan's evaluation; 0: it has none.
        evaluation: its routes, each a number of the one's there, or what it is.
        addresses: of workers that have none, or another one, there.
    """

    base: int
    generation: int
    step: int
    pipelines: tuple[int | tuple[Cut, ...], ...]
    routes: tuple[int | RouteUpdate, ...]
    sync_epochs: tuple[int, ...]
    shadows: tuple[Cut, ...]
    transfers: tuple[Transfer, ...]
    spare_in_flight: int
    layer_units: tuple[tuple[int, int, int], ...] | None
    dropped: tuple[int, ...]
    num_evaluated: int
    evaluation: tuple[int | RouteUpdate, ...]
    addresses: dict[WorkerId, str]
    exponents: tuple[int, ...]
    source: StateSource
    folder: str
    afresh: bool
    begun: int
    lineage: int
    audits: tuple[Audit, ...] = ()
    wire_bytes_per_s: float = 0.0


class CompressedPlan(Message, frozen=True, kw_only=True, tag="compressed_plan"):
    """A `PlanMessage` or a `PlanUpdate`, compressed by zlib."""

    body: bytes


class UpdateError(ValueError):
    """Raised for an update that does not fit the plan before it."""


def difference(before: PlanMessage, after: PlanMessage) -> PlanUpdate | None:
    """Returns the update that turns `before` into `after`; None where `after` has to be sent whole."""
    old, new = before.plan, after.plan
    if _frame(old) != _frame(new) or set(after.addresses) != set(new.workers):
        return None
    pipeline_at = {pipeline: at for at, pipeline in enumerate(old.pipelines)}
    stages_at = {pipeline.stages: at for at, pipeline in enumerate(new.pipelines)}
    return PlanUpdate(
        base=old.generation,
        generation=new.generation,
        step=after.step,
        pipelines=tuple(pipeline_at[p] if p in pipeline_at else _cuts(p.stages) for p in new.pipelines),
        routes=_route_updates(old.routes, new.routes, new.num_layers, stages_at),
        sync_epochs=new.sync_epochs,
        shadows=_cuts(new.shadows),
        transfers=new.transfers,
        spare_in_flight=new.spare_in_flight,
        layer_units=None if new.layer_units == old.layer_units else new.layer_units,
        dropped=new.dropped,
        num_evaluated=_num_evaluated(new),
        evaluation=_route_updates(_evaluated(old), _evaluated(new), new.num_layers, stages_at),
        addresses={w: a for w, a in after.addresses.items() if before.addresses.get(w) != a},
        exponents=after.exponents,
        source=after.source,
        folder=after.folder,
        afresh=after.afresh,
        begun=after.begun,
        lineage=after.lineage,
        audits=after.audits,
        wire_bytes_per_s=after.wire_bytes_per_s,
    )


def encoded(message: Message, before: PlanMessage | None) -> bytes:
    """Returns a message as bytes: a plan as what differs from the one before it on the connection, where it can be."""
    if not isinstance(message, PlanMessage):
        return encode(message)
    body = encode((difference(before, message) if before is not None else None) or message)
    return encode(CompressedPlan(body=zlib.compress(body, 1))) if len(body) >= COMPRESSED_FROM_BYTES else body


def updated(before: PlanMessage, update: PlanUpdate) -> PlanMessage:
    """Returns the message that the update stands for.

    Raises:
        UpdateError: it is about another plan, or names what that does not have.
    """
    old = before.plan
    if update.base != old.generation:
        raise UpdateError(f"an update of plan {update.base} came after plan {old.generation}")
    pipelines = tuple(
        _at(old.pipelines, given) if isinstance(given, int) else Pipeline(stages=_stages(given))
        for given in update.pipelines
    )
    routes = _routes(old.routes, update.routes, pipelines, old.num_layers, old.num_microbatches)
    evaluated = _routes(_evaluated(old), update.evaluation, pipelines, old.num_layers, update.num_evaluated)
    evaluation = Evaluation(num_microbatches=update.num_evaluated, routes=evaluated) if update.num_evaluated else None
    plan = msgspec.structs.replace(
        old,
        generation=update.generation,
        pipelines=pipelines,
        routes=routes,
        sync_epochs=update.sync_epochs,
        shadows=_stages(update.shadows),
        transfers=update.transfers,
        spare_in_flight=update.spare_in_flight,
        layer_units=old.layer_units if update.layer_units is None else update.layer_units,
        dropped=update.dropped,
        evaluation=evaluation,
    )
    known = before.addresses | update.addresses
    missing = [worker for worker in plan.workers if worker not in known]
    if missing:
        raise UpdateError(f"an update brings no address of worker {missing[0]}")
    return PlanMessage(
        plan=plan,
        step=update.step,
        addresses={worker: known[worker] for worker in plan.workers},
        exponents=update.exponents,
        source=update.source,
        folder=update.folder,
        afresh=update.afresh,
        begun=update.begun,
        lineage=update.lineage,
        audits=update.audits,
        wire_bytes_per_s=update.wire_bytes_per_s,
    )


def _num_evaluated(plan: Plan) -> int:
    return 0 if plan.evaluation is None else plan.evaluation.num_microbatches


def _evaluated(plan: Plan) -> tuple[Route, ...]:
    return () if plan.evaluation is None else plan.evaluation.routes


def _route_updates(
    old: Sequence[Route], new: Sequence[Route], num_layers: int, stages_at: Mapping[tuple[Stage, ...], int]
) -> tuple[int | RouteUpdate, ...]:
    """Returns routes on the wire, given the old ones, and the numbers of the new plan's pipelines by their stages."""
    route_at = {route: at for at, route in enumerate(old)}
    every_layer = tuple(range(num_layers))
    return tuple(
        route_at[route]
        if route in route_at
        else RouteUpdate(
            stages_at[route.hops] if route.hops in stages_at else _cuts(route.hops),
            tuple(ranges(route.microbatches)),
            route.born,
            None if route.counted == every_layer else route.counted,
            route.reached,
        )
        for route in new
    )


def _routes(
    old: Sequence[Route],
    given: Sequence[int | RouteUpdate],
    pipelines: Sequence[Pipeline],
    num_layers: int,
    num_microbatches: int,
) -> tuple[Route, ...]:
    """Returns the routes that the updates stand for, given the old ones and the new plan's pipelines."""
    every_layer = tuple(range(num_layers))
    return tuple(
        _at(old, one)
        if isinstance(one, int)
        else Route(
            hops=_at(pipelines, one.hops).stages if isinstance(one.hops, int) else _stages(one.hops),
            microbatches=_numbers(one.microbatches, num_microbatches),
            born=one.born,
            counted=every_layer if one.counted is None else one.counted,
            reached=one.reached,
        )
        for one in given
    )


_decoder = msgspec.msgpack.Decoder(ToWorker | Challenge | PlanUpdate | CompressedPlan)
_compressed = msgspec.msgpack.Decoder(PlanMessage | PlanUpdate)


def decode_order(data: bytes, last: PlanMessage | None) -> ToWorker | Challenge:
    """Decodes a message of the coordinator, where `last` is the plan that came before it.

    Raises:
        UpdateError: it is an update of another plan.
        msgspec.DecodeError: it is not a message of the coordinator.
    """
    message: ToWorker | Challenge | PlanUpdate | CompressedPlan = decoded(_decoder, data)
    if isinstance(message, CompressedPlan):
        expanded: PlanMessage | PlanUpdate = decoded(_compressed, _expanded(message.body))
        message = expanded
    if not isinstance(message, PlanUpdate):
        return message
    if last is None:
        raise UpdateError(f"an update of plan {message.base} came before any plan")
    return updated(last, message)


def _expanded(body: bytes) -> bytes:
    """Returns the bytes that were compressed, of which there are no more than in a frame. Raises DecodeError."""
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(body, MAX_FRAME_BYTES)
    except zlib.error as error:
        raise msgspec.DecodeError(f"a plan cannot be expanded: {error}") from None
    if not stream.eof:
        raise msgspec.DecodeError(f"a plan has over {MAX_FRAME_BYTES} bytes, or is not whole")
    return found


class Orders:
    """Decodes what one connection brings, with updates turned into whole plans."""

    def __init__(self) -> None:
        self._last: PlanMessage | None = None

    def decode(self, data: bytes) -> ToWorker | Challenge:
        """Decodes one message. Raises ValueError for anything unknown, or an update without its base."""
        message = decode_order(data, self._last)
        if isinstance(message, PlanMessage):
            self._last = message
        return message


def _frame(plan: Plan) -> tuple[object, ...]:
    """Returns what two plans must have in common for one to be told as an update of the other."""
    devices = plan.devices_per_node, plan.devices_per_stage, plan.spreads_optimizer, plan.shares_microbatches
    return plan.num_layers, plan.num_microbatches, devices, plan.groups, plan.schedule, plan.redundancy


def _cuts(stages: Sequence[Stage]) -> tuple[Cut, ...]:
    return tuple(Cut(s.worker, s.first_layer, s.end_layer, s.num_devices) for s in stages)


def _stages(cuts: Sequence[Cut]) -> tuple[Stage, ...]:
    return tuple(
        Stage(worker=c.worker, first_layer=c.first_layer, end_layer=c.end_layer, num_devices=c.num_devices)
        for c in cuts
    )


def _numbers(given: Sequence[tuple[int, int]], limit: int) -> tuple[int, ...]:
    if any(not 0 <= first < end <= limit for first, end in given):
        raise UpdateError(f"an update has microbatches {given!r:.100} of {limit}")
    return tuple(number for first, end in given for number in range(first, end))


def _at(items: Sequence[Item], at: int) -> Item:
    if not 0 <= at < len(items):
        raise UpdateError(f"an update names number {at} of {len(items)}")
    return items[at]
