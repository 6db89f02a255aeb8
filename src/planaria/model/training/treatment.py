"""What the job's rules, [[train.parameters]], say of each parameter."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from planaria.job.sections.train import TrainSection
from planaria.model.model import Model, ModelError, ParameterSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Treatment:
    """What a parameter is trained with.

    Attributes:
        rule: number of the job's rule that holds for it; -1: none.
        weight_decay: how much its weights decay.
        rate: what the learning rate is multiplied by.
    """

    rule: int
    weight_decay: float
    rate: float


def rule_of(name: str, train: TrainSection) -> int:
    """Returns the number of the rule that holds for a parameter, the first that matches its name; -1: none."""
    return next((number for number, rule in enumerate(train.parameters) if fnmatchcase(name, rule.match)), -1)


def is_frozen(name: str, train: TrainSection) -> bool:
    """Returns whether a rule keeps the parameter from being trained."""
    number = rule_of(name, train)
    return number >= 0 and not train.parameters[number].trainable


def treatment_of(parameter: ParameterSpec, train: TrainSection) -> Treatment:
    """Returns a parameter's treatment: the rule that holds for it says, and [train] what that leaves open."""
    plain = train.weight_decay if parameter.decays else 0.0
    number = rule_of(parameter.name, train)
    if number < 0:
        return Treatment(rule=number, weight_decay=plain, rate=1.0)
    rule = train.parameters[number]
    decay = plain if rule.weight_decay is None else rule.weight_decay
    return Treatment(rule=number, weight_decay=decay, rate=rule.learning_rate_factor)


def check_rules(model: Model, train: TrainSection) -> None:
    """Refuses a rule that holds for no parameter of the model.

    Raises:
        ModelError: names the rule.
    """
    trained = [parameter for group in model.groups if not group.is_statistics for parameter in group.parameters]
    parameters = [*trained, *model.frozen]
    used = {rule_of(parameter.name, train) for parameter in parameters}
    for number, rule in enumerate(train.parameters):
        if number not in used:
            raise ModelError(
                f"train.parameters: match = {rule.match!r} holds for none of the {len(parameters)} parameters that no "
                f"rule before it matches. They are named like {parameters[0].name!r} and {parameters[-1].name!r}."
            )
