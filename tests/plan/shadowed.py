"""Plans with shadows that compute, and their programs run step by step, as far as one likes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import pairwise

from planaria.plan.ledger import Ledger
from planaria.plan.plan import Group, Pipeline, Plan, Redundancy, Route, ScheduleKind, Stage, WorkerId
from planaria.plan.program.instructions import Instruction, Op
from planaria.plan.program.programs import programs
from planaria.planner.rings import ring_shadows
from planaria.protocol.worker.progress import Progress

Stop = Callable[[WorkerId, Instruction], bool]


def ring_plan(
    mode: Redundancy | None,
    *,
    pipelines: int = 2,
    depth: int = 3,
    layers: int = 6,
    microbatches: int = 6,
    schedule: ScheduleKind = ScheduleKind.ONE_F_ONE_B,
) -> Plan:
    """Equal pipelines of equal stages, one node each, in a ring of shadows."""
    cuts = [layers * at // depth for at in range(depth + 1)]
    made = [
        Pipeline(
            stages=tuple(
                Stage(worker=WorkerId(number * depth + at), first_layer=first, end_layer=end)
                for at, (first, end) in enumerate(pairwise(cuts))
            )
        )
        for number in range(pipelines)
    ]
    share = microbatches // pipelines
    return Plan(
        generation=1,
        num_layers=layers,
        num_microbatches=microbatches,
        devices_per_node=1,
        groups=tuple(Group(layers=(layer,), size_bytes=100) for layer in range(layers)),
        pipelines=tuple(made),
        routes=tuple(
            Route(
                hops=pipeline.stages,
                microbatches=tuple(range(number * share, (number + 1) * share)),
                born=1,
                counted=tuple(range(layers)),
            )
            for number, pipeline in enumerate(made)
        ),
        sync_epochs=(1,) * layers,
        shadows=() if mode is None else ring_shadows(made, 1),
        redundancy=mode,
        schedule=schedule,
    )


class Machine:
    """Workers that run their programs in turn; messages are names, and nothing takes time.

    Attributes:
        ran: layers run, of each kind of instruction, under the plan in force.
        sent: messages that were sent under it.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._progress = {worker: Progress() for worker in plan.workers}
        for worker, program in programs(plan).items():
            self._progress[worker].begin(program)
        self._mail: set[tuple[object, ...]] = set()
        self._counted = {worker: [0] * plan.num_layers for worker in plan.workers}
        self.ran: dict[Op, int] = {}
        self.sent: list[Instruction] = []

    def run(self, stop: Stop | None = None) -> None:
        """Until all are done, or the first that `stop` says is about to be run. Whoever waits for nothing is found."""
        while any(progress.next is not None for progress in self._progress.values()):
            went_on = False
            for worker, progress in self._progress.items():
                while (instruction := progress.next) is not None and self._is_ready(worker, instruction):
                    if stop is not None and stop(worker, instruction):
                        return
                    self._do(worker, progress, instruction)
                    went_on = True
            assert went_on, {worker: progress.next for worker, progress in self._progress.items()}

    def _is_ready(self, worker: WorkerId, instruction: Instruction) -> bool:
        if instruction.op not in (Op.RECV_ACTIVATION, Op.RECV_GRADIENT):
            return True
        kind = "a" if instruction.op is Op.RECV_ACTIVATION else "g"
        name = kind, instruction.peer, worker, instruction.born, instruction.microbatch, instruction.first_layer
        return name in self._mail

    def _do(self, worker: WorkerId, progress: Progress, i: Instruction) -> None:
        work = i.microbatch, i.born
        done = 0
        match i.op:
            case Op.SEND_ACTIVATION | Op.SEND_GRADIENT:
                kind = "a" if i.op is Op.SEND_ACTIVATION else "g"
                self._mail.add((kind, worker, i.peer, i.born, i.microbatch, i.first_layer))
                self.sent.append(i)
            case Op.FORWARD | Op.SHADOW_FORWARD:
                layers = [layer for run in progress.forwards_left(i) for layer in run]
                done = len(layers)
                for layer in layers:
                    progress.note_forward(work, layer)
            case Op.BACKWARD | Op.BACKWARD_WEIGHT | Op.SHADOW_BACKWARD:
                left = progress.backwards_left(i)
                done = len(left)
                for layer in left:
                    progress.note_backward(work, layer)
                    if layer in i.counted and i.op is not Op.SHADOW_BACKWARD:
                        assert not self._counted[worker][layer] >> i.microbatch & 1
                        self._counted[worker][layer] |= 1 << i.microbatch
            case Op.BACKWARD_INPUT:
                for layer in progress.inputs_left(i):
                    progress.note_input(work, layer)
            case _:
                pass
        self.ran[i.op] = self.ran.get(i.op, 0) + done
        progress.finish()

    def lose(self, lost: Collection[int]) -> None:
        """What they have and had counted is gone."""
        for worker in lost:
            del self._progress[WorkerId(worker)], self._counted[WorkerId(worker)]

    @property
    def live(self) -> tuple[WorkerId, ...]:
        return tuple(self._progress)

    def ledger(self, workers: Collection[WorkerId]) -> Ledger:
        """What these have counted, together."""
        return Ledger.from_bits([_union(self._counted, workers, layer) for layer in range(self.plan.num_layers)])

    def go_on(self, plan: Plan) -> None:
        """The step goes on under this plan."""
        self.plan, self.ran, self.sent = plan, {}, []
        for worker, program in programs(plan, self._progress).items():
            self._progress[worker].go_on(program)

    def counts_everything_once(self) -> bool:
        """Every microbatch is in exactly one live accumulator of each layer, copies aside."""
        everything = (1 << self.plan.num_microbatches) - 1
        return all(
            _union(self._counted, self._counted, layer) == everything == sum(c[layer] for c in self._counted.values())
            for layer in range(self.plan.num_layers)
        )


def _union(counted: dict[WorkerId, list[int]], workers: Collection[WorkerId], layer: int) -> int:
    found = 0
    for worker in workers:
        found |= counted[worker][layer]
    return found
