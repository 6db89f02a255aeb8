"""Runs a layer's backward in two passes: the gradients of its inputs now, those of its parameters later, no work twice.

Autograd computes only what leads to the tensors that it is asked for. So the first pass asks for the inputs, and notes
what arrives at the border: at each node on the way from outputs to inputs from which an edge leaves for parameters
alone. The second pass starts at these nodes, with what was noted, and asks for the parameters.

Where a parameter is reached from more than one border node (a module that a layer calls twice), its gradient is a sum
over parts that depend on each other: then the first pass computes everything, and the second only hands it out. A
user's own torch.autograd.Function gives all its gradients in each pass: that costs time and changes nothing.
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
    """A node on the way to the inputs, and the parameters (by number) that are reached from it alone."""

    node: Node
    parameters: list[int]
    arrived: tuple[torch.Tensor | None, ...] = ()

    def note(self, gradients: tuple[torch.Tensor | None, ...]) -> None:
        self.arrived = gradients


@dataclass(slots=True)
class _Cut:
    """The cut of a graph in two.

    Attributes:
        borders: see the module.
        loose_roots: numbers of the roots from which no input is reached.
        loose_parameters: numbers of the parameters that are reached from those roots alone.
    """

    borders: list[_Border] = field(default_factory=list)
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
        handles = [border.node.register_prehook(border.note) for border in cut.borders]
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
    for border in cut.borders:
        arrived = border.arrived
        edges = [GradientEdge(border.node, at) for at, gradient in enumerate(arrived) if gradient is not None]
        if not edges:
            continue
        # What was noted came after the user's hooks on this tensor, which run again now: so it is put in anew.
        handle = border.node.register_prehook(lambda _, noted=arrived: noted)
        try:
            gradients = torch.autograd.grad(
                edges,
                [parameters[number] for number in border.parameters],
                [gradient for gradient in arrived if gradient is not None],
                allow_unused=True,
            )
        finally:
            handle.remove()
        for number, gradient in zip(border.parameters, gradients, strict=True):
            found[number] = gradient
    return found


def _cut(
    roots: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], parameters: Sequence[torch.Tensor]
) -> _Cut | None:
    """Finds where the graph falls in two; None if a parameter is reached from more than one side."""
    ends = [get_gradient_edge(root).node for root in roots]
    below = _Below(inputs, parameters)
    for end in ends:
        below.visit(end)
    cut = _Cut(borders=[_Border(node, sorted(numbers)) for node, numbers in below.borders.items()])
    loose: set[int] = set()
    for at, end in enumerate(ends):
        if end not in below.leading:
            cut.loose_roots.append(at)
            loose |= below.parameters[end]
    cut.loose_parameters = sorted(loose)
    reached = sum(len(border.parameters) for border in cut.borders) + len(loose)
    distinct = loose.union(*(border.parameters for border in cut.borders))
    return cut if reached == len(distinct) else None


class _Below:
    """Finds what is reached from each node of a graph.

    Attributes:
        leading: nodes from which an input is reached.
        parameters: for every other node, the numbers of the parameters that are reached from it.
        borders: for each leading node with edges that do not lead on, the numbers of the parameters behind those.
    """

    def __init__(self, inputs: Sequence[torch.Tensor], parameters: Sequence[torch.Tensor]) -> None:
        self.leading: dict[Node, None] = {get_gradient_edge(tensor).node: None for tensor in inputs}
        self.parameters: dict[Node, frozenset[int]] = {
            get_gradient_edge(tensor).node: frozenset({number}) for number, tensor in enumerate(parameters)
        }
        self.borders: dict[Node, frozenset[int]] = {}

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
        if not leads:
            self.parameters[node] = behind
            return
        self.leading[node] = None
        if behind:
            self.borders[node] = behind


def _children(node: Node) -> list[Node]:
    return [child for child, _ in node.next_functions if child is not None]
