"""Divides parameters into parameter groups: a layer's own, then what layers share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planaria.model.model import GroupSpec, ParameterSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParameter:
    """A parameter as one layer holds it.

    Attributes:
        name: unique in the model; two layers that give the same name share the parameter.
        local: its name within the layer's module.
        shape: the tensor's shape.
    """

    name: str
    local: str
    shape: tuple[int, ...]


def parameter_specs(layers: Sequence[Iterable[LayerParameter]]) -> tuple[ParameterSpec, ...]:
    """Returns the parameters of a model whose layers hold these, in name order."""
    uses: dict[str, list[tuple[int, str]]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for index, parameters in enumerate(layers):
        for parameter in parameters:
            uses.setdefault(parameter.name, []).append((index, parameter.local))
            shape = shapes.setdefault(parameter.name, parameter.shape)
            assert shape == parameter.shape, f"{parameter.name} has shapes {shape} and {parameter.shape}"
    return tuple(
        ParameterSpec(name=name, shape=shapes[name], decays=len(shapes[name]) >= 2, uses=tuple(uses[name]))
        for name in sorted(uses)
    )


def group_parameters(specs: Iterable[ParameterSpec]) -> tuple[GroupSpec, ...]:
    """Returns the groups of these parameters, given in name order.

    Parameters shared by the same set of layers are one tied group.
    """
    members: dict[tuple[int, ...], list[ParameterSpec]] = {}
    for spec in specs:
        members.setdefault(tuple(dict.fromkeys(layer for layer, _ in spec.uses)), []).append(spec)
    groups = [GroupSpec(layers=layers, parameters=tuple(specs)) for layers, specs in members.items()]
    return tuple(sorted(groups, key=lambda group: (len(group.layers) > 1, group.layers[0], group.parameters[0].name)))
