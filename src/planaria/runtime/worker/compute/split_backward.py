"""Runs a layer's backward in two passes: the gradients of its inputs now, those of its parameters later, no work twice.

Autograd computes only what leads to the tensors that it is asked for. So the first pass asks for the inputs, and notes
what arrives at the border: at each node on the way from outputs to inputs from which an edge leaves for parameters
alone. The second pass starts at these nodes, with what was noted, and asks for the parameters.

Where a parameter is reached from more than one border node (a module that a layer calls twice), its gradient may be a
sum over parts, or these may depend on each other: then the first pass computes everything, and the second only hands it
out. Slices of a parameter that are used side by side (virtual shards) are neither: the second pass starts at all their
nodes together. A user's own torch.autograd.Function gives all its gradients in each pass: that costs time and changes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

Gradients = Sequence[torch.Tensor | None]
_NONE: frozenset[int] = frozenset()


@dataclass(slots=True)
class _Border:
    """A node on the way to the inputs, and what arrived there."""

    node: Node
    arrived: tuple[torch.Tensor | None, ...] = ()

    def note(self, gradients: tuple[torch.Tensor | None, ...]) -> None:
        self.arrived = gradients


@dataclass(slots=True)
class _Side:
    """Border nodes, and the parameters (by number) that are reached from these alone."""

    borders: list[_Border]
    parameters: list[int]


@dataclass(slots=True)
class _Cut:
    """The cut of a graph in two.

    Attributes:
        sides: of the border; mostly of one node each.
        loose_roots: numbers of the roots from which no input is reached.
        loose_parameters: numbers of the parameters that are reached from those roots alone.
    """

    sides: list[_Side] = field(default_factory=list)
    loose_roots: list[int] = field(default_factory=list)
    loose_parameters: list[int] = field(default_factory=list)


class WeightPass:
    """Computes the second pass of one layer's backward. It keeps the part of the graph that it needs.

    Args:
        run: computes the gradients.
    """

    def __init__(self, run: Callable[[], Gradients]) -> None:
        self._run = run

    def gradients(self) -> Gradients:
        """Returns a gradient for each parameter, None where there is none. To be called once: the graph is used up."""
        return self._run()


def backward_in_two(
    roots: Sequence[torch.Tensor],
    given: Sequence[torch.Tensor | None],
    inputs: Sequence[torch.Tensor],
    parameters: Sequence[torch.Tensor],
) -> tuple[Gradients, WeightPass]:
    """Runs the first pass; returns the inputs' gradients, and the second pass.

    Args:
        roots: tensors that require a gradient, with one graph behind them.
        given: their gradients; None for a scalar's 1.
        inputs: leaves of that graph.
        parameters: other leaves of it.
    """
    cut = _cut(roots, inputs, parameters)
    if cut is None:
        return backward_at_once(roots, given, inputs, parameters)
    of_inputs: Gradients = ()
    if inputs:
        handles = [border.node.register_prehook(border.note) for side in cut.sides for border in side.borders]
        try:
            of_inputs = torch.autograd.grad(roots, inputs, given, retain_graph=True, allow_unused=True)
        finally:
            for handle in handles:
                handle.remove()
    loose = [(roots[at], given[at]) for at in cut.loose_roots]
    return of_inputs, WeightPass(lambda: _weights(cut, loose, parameters))


def backward_at_once(
    roots: Sequence[torch.Tensor],
    given: Sequence[torch.Tensor | None],
    inputs: Sequence[torch.Tensor],
    parameters: Sequence[torch.Tensor],
) -> tuple[Gradients, WeightPass]:
    """Computes everything in the first pass, for `backward_in_two`'s arguments; the second only hands it out."""
    found = torch.autograd.grad(roots, [*inputs, *parameters], given, allow_unused=True)
    of_parameters = found[len(inputs) :]
    return found[: len(inputs)], WeightPass(lambda: of_parameters)


def _weights(
    cut: _Cut, loose: Sequence[tuple[torch.Tensor, torch.Tensor | None]], parameters: Sequence[torch.Tensor]
) -> Gradients:
    found: list[torch.Tensor | None] = [None] * len(parameters)
    if cut.loose_parameters:
        roots, given = [root for root, _ in loose], [gradient for _, gradient in loose]
        wanted = [parameters[number] for number in cut.loose_parameters]
        gradients = torch.autograd.grad(roots, wanted, given, allow_unused=True)
        for number, gradient in zip(cut.loose_parameters, gradients, strict=True):
            found[number] = gradient
    for side in cut.sides:
        reached = [border for border in side.borders if any(gradient is not None for gradient in border.arrived)]
        if not reached:
            continue
        # What was noted came after the user's hooks on these tensors, which run again now: so it is put in anew.
        handles = [border.node.register_prehook(lambda _, noted=border.arrived: noted) for border in reached]
        arrived = [
            (GradientEdge(border.node, at), gradient)
            for border in reached
            for at, gradient in enumerate(border.arrived)
            if gradient is not None
        ]
        try:
            gradients = torch.autograd.grad(
                [edge for edge, _ in arrived],
                [parameters[number] for number in side.parameters],
                [gradient for _, gradient in arrived],
                allow_unused=True,
            )
        finally:
            for handle in handles:
                handle.remove()
        for number, gradient in zip(side.parameters, gradients, strict=True):
            found[number] = gradient
    return found


def _cut(
    roots: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], parameters: Sequence[torch.Tensor]
) -> _Cut | None:
    """Finds where the graph falls in two; None if it does not."""
    ends = [get_gradient_edge(root).node for root in roots]
    below = _Below(inputs, parameters)
    for end in ends:
        below.visit(end)
    cut = _Cut(sides=_sides(below.borders))
    loose: set[int] = set()
    for at, end in enumerate(ends):
        if end not in below.leading:
            cut.loose_roots.append(at)
            loose |= below.parameters[end]
    cut.loose_parameters = sorted(loose)
    apart = all(loose.isdisjoint(side.parameters) and below.is_side_by_side(side) for side in cut.sides)
    return cut if apart else None


def _sides(borders: Mapping[Node, frozenset[int]]) -> list[_Side]:
    """Joins border nodes from which the same parameters are reached."""
    sides: list[tuple[list[Node], frozenset[int]]] = []
    for node, numbers in borders.items():
        same = [side for side in sides if not side[1].isdisjoint(numbers)]
        sides = [side for side in sides if side[1].isdisjoint(numbers)]
        nodes = [one for side in same for one in side[0]]
        sides.append(([*nodes, node], numbers.union(*(side[1] for side in same))))
    return [_Side([_Border(node) for node in nodes], sorted(numbers)) for nodes, numbers in sides]


class _Below:
    """Finds what is reached from each node of a graph.

    Attributes:
        leading: nodes from which an input is reached.
        parameters: for every other node, the numbers of the parameters that are reached from it.
        borders: for each leading node with edges that do not lead on, the numbers of the parameters behind those.
        added: parameters on whose way gradients that come over several edges are added up.
    """

    def __init__(self, inputs: Sequence[torch.Tensor], parameters: Sequence[torch.Tensor]) -> None:
        self.leading: dict[Node, None] = {get_gradient_edge(tensor).node: None for tensor in inputs}
        self.parameters: dict[Node, frozenset[int]] = {
            get_gradient_edge(tensor).node: frozenset({number}) for number, tensor in enumerate(parameters)
        }
        self.borders: dict[Node, frozenset[int]] = {}
        self.added: set[int] = set()
        self._bits: dict[Node, int] = {}
        self._on_way: dict[Node, int] = {}
        self._edges: set[tuple[Node, int]] = set()

    def visit(self, root: Node) -> None:
        """Visits all that is reached from `root`, children before parents."""
        known: tuple[Mapping[Node, object], ...] = (self.leading, self.parameters)
        if root in known[0] or root in known[1]:
            return
        children = _children(root)
        path = [(root, children, iter(children))]
        while path:
            node, children, rest = path[-1]
            for child in rest:
                if child not in known[0] and child not in known[1]:
                    below = _children(child)
                    path.append((child, below, iter(below)))
                    break
            else:
                self._leave(node, children)
                path.pop()

    def _leave(self, node: Node, children: Sequence[Node]) -> None:
        leads = any(child in self.leading for child in children)
        behind = _NONE.union(*(self.parameters[child] for child in children if child in self.parameters))
        for child, at in node.next_functions:
            if child is not None and child in self.parameters:
                if (child, at) in self._edges:
                    self.added |= self.parameters[child]
                self._edges.add((child, at))
        if not leads:
            self.parameters[node] = behind
            return
        self.leading[node] = None
        on_way = 0  # border nodes from here to the inputs, a bit each
        for child in children:
            on_way |= self._on_way.get(child, 0) | self._bits.get(child, 0)
        self._on_way[node] = on_way
        if behind:
            self._bits[node] = 1 << len(self.borders)
            self.borders[node] = behind

    def is_side_by_side(self, side: _Side) -> bool:
        """Whether no node of a side is on the way of another one, and their gradients meet in no sum."""
        if len(side.borders) == 1:
            return True
        all_bits = sum(self._bits[border.node] for border in side.borders)
        is_on_way = any(self._on_way[border.node] & all_bits for border in side.borders)
        return not is_on_way and self.added.isdisjoint(side.parameters)


def _children(node: Node) -> list[Node]:
    return [child for child, _ in node.next_functions if child is not None]
