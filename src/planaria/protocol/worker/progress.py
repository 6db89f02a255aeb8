"""Progress: what of a step's program is done at one worker, what is next, and what stays done when the plan changes.

Bookkeeping alone: it runs nothing and waits for nobody. The interpreter of a real worker and that of a simulated one
both keep it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Container, Sequence

from planaria.plan.ledger import mask_of, members_of
from planaria.plan.plan import Route
from planaria.plan.program.instructions import Instruction, Op, Program

Work = tuple[int, int]
"""A microbatch and the generation in which its route was born."""


_SENDS = (Op.SEND_ACTIVATION, Op.SEND_GRADIENT)


class Progress:
    """Progress of one worker in the step in progress."""

    def __init__(self) -> None:
        self._todo: deque[Instruction] = deque()
        self._num_sends = 0
        self._done: set[Instruction] = set()
        self._done_forward: set[tuple[Work, int]] = set()
        self._done_input: set[tuple[Work, int]] = set()
        self._done_backward: set[tuple[Work, int]] = set()

    def begin(self, program: Program) -> None:
        """Begins a step with nothing done."""
        self._done.clear()
        self._done_forward.clear()
        self._done_input.clear()
        self._done_backward.clear()
        self.go_on(program)

    def go_on(self, program: Program) -> None:
        """Goes on with this program: what is done stays done, and so does what followed from a message."""
        todo = [i for i in program if i.op is not Op.APPLY]
        if self._done or self._done_forward or self._done_input:
            todo = [i for i in todo if i not in self._done and not self._came_before(i)]
        self._todo = deque(todo)
        self._num_sends = sum([i.op in _SENDS for i in todo])

    def _came_before(self, instruction: Instruction) -> bool:
        """Returns whether an instruction receives what a worker that is now lost had sent, and what was used."""
        work = (instruction.microbatch, instruction.born)
        match instruction.op:
            case Op.RECV_ACTIVATION:
                return (work, instruction.first_layer) in self._done_forward
            case Op.RECV_GRADIENT:
                return (work, instruction.first_layer - 1) in self._done_input
            case _:
                return False

    @property
    def next(self) -> Instruction | None:
        """Returns the next instruction; None at the program's end."""
        return self._todo[0] if self._todo else None

    def finish(self) -> None:
        """Records that the next instruction is done."""
        instruction = self._todo.popleft()
        self._num_sends -= instruction.op in _SENDS
        self._done.add(instruction)

    @property
    def has_sends(self) -> bool:
        """Whether a peer still waits for something that the program computes."""
        return self._num_sends > 0

    # Under an earlier plan, a forward or backward may have been a shadow's, and cut into other pieces, or halves.

    def forwards_left(self, instruction: Instruction) -> tuple[range, ...]:
        """Returns ranges of layers, bottom up, whose forward the instruction has yet to run."""
        work = (instruction.microbatch, instruction.born)
        left: list[range] = []
        for layer in range(instruction.first_layer, instruction.end_layer):
            if (work, layer) not in self._done_forward:
                first = left.pop().start if left and left[-1].stop == layer else layer
                left.append(range(first, layer + 1))
        return tuple(left)

    def note_forward(self, work: Work, layer: int) -> None:
        """Records that the layer's forward is done."""
        self._done_forward.add((work, layer))

    def inputs_left(self, instruction: Instruction) -> tuple[int, ...]:
        """Returns layers, top down, of which the instruction has yet to compute the input's gradient."""
        return _left(instruction, self._done_input)

    def backwards_left(self, instruction: Instruction) -> tuple[int, ...]:
        """Returns layers, top down, whose backward, or its weights' half, the instruction has yet to do."""
        return _left(instruction, self._done_backward)

    def has_input(self, work: Work, layer: int) -> bool:
        """Returns whether the input's half of the layer's backward is done."""
        return (work, layer) in self._done_input

    def note_input(self, work: Work, layer: int) -> None:
        """Records that the input's half of the layer's backward is done."""
        self._done_input.add((work, layer))

    def counts_anew(self, counted: Sequence[int], routes: Collection[Route], is_evaluated: bool) -> bool:
        """Returns whether these routes have something counted that this worker has counted for other work.

        Args:
            counted: for each layer, the bit mask of the microbatches that it has counted.
            routes: of the plan.
            is_evaluated: forwards alone count, those of an evaluation.
        """
        done = self._done_forward if is_evaluated else self._done_backward
        return any(
            ((microbatch, route.born), layer) not in done
            for route in routes
            for own in [mask_of(route.microbatches)]
            for layer in route.counted
            for microbatch in members_of(counted[layer] & own)
        )

    def note_backward(self, work: Work, layer: int) -> None:
        """Records that both halves of the layer's backward are done."""
        self._done_input.add((work, layer))
        self._done_backward.add((work, layer))


def _left(instruction: Instruction, done: Container[tuple[Work, int]]) -> tuple[int, ...]:
    work = (instruction.microbatch, instruction.born)
    layers = reversed(range(instruction.first_layer, instruction.end_layer))
    return tuple(layer for layer in layers if (work, layer) not in done)
