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
        is_statistic: it is a running statistic.
    """

    name: str
    local: str
    shape: tuple[int, ...]
    is_statistic: bool = False


def parameter_specs(layers: Sequence[Iterable[LayerParameter]]) -> tuple[ParameterSpec, ...]:
    """Returns the parameters of a model whose layers hold these, in name order."""
    uses: dict[str, list[tuple[int, str]]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    statistics: set[str] = set()
    for index, parameters in enumerate(layers):
        for parameter in parameters:
            uses.setdefault(parameter.name, []).append((index, parameter.local))
            shape = shapes.setdefault(parameter.name, parameter.shape)
            assert shape == parameter.shape, f"{parameter.name} has shapes {shape} and {parameter.shape}"
            if parameter.is_statistic:
                statistics.add(parameter.name)
    return tuple(
        ParameterSpec(
            name=name,
            shape=shapes[name],
            decays=len(shapes[name]) >= 2,
            uses=tuple(uses[name]),
            is_statistic=name in statistics,
        )
        for name in sorted(uses)
    )


def group_parameters(specs: Iterable[ParameterSpec]) -> tuple[GroupSpec, ...]:
    """Returns the groups of these parameters, given in name order.

    Parameters shared by the same set of layers are one tied group. Running statistics are apart from parameters.
    """
    members: dict[tuple[tuple[int, ...], bool], list[ParameterSpec]] = {}
    for spec in specs:
        layers = tuple(dict.fromkeys(layer for layer, _ in spec.uses))
        members.setdefault((layers, spec.is_statistic), []).append(spec)
    groups = [GroupSpec(layers=layers, parameters=tuple(specs)) for (layers, _), specs in members.items()]
    return tuple(sorted(groups, key=lambda group: (len(group.layers) > 1, group.layers[0], group.parameters[0].name)))
