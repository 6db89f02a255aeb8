"""The whole job file: its sections, in the order of the reference. Nothing is read from anywhere."""

from __future__ import annotations

import msgspec

from planaria.job.sections.budget import BudgetSection
from planaria.job.sections.cluster import ClusterSection
from planaria.job.sections.data import DataSection
from planaria.job.sections.eval import EvalSection
from planaria.job.sections.model import ModelSection
from planaria.job.sections.observe import ObserveSection
from planaria.job.sections.resilience import ResilienceSection
from planaria.job.sections.run import RunSection
from planaria.job.sections.train import Numerics, TrainSection


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole job file."""

    model: ModelSection
    train: TrainSection
    cluster: ClusterSection
    data: DataSection = DataSection()
    eval: EvalSection = EvalSection()
    resilience: ResilienceSection = ResilienceSection()
    run: RunSection = RunSection()
    budget: BudgetSection = BudgetSection()
    observe: ObserveSection = ObserveSection()

    @property
    def compares_replicas(self) -> bool:
        """Whether replicas and sums are compared between owners: only exact numerics make the same bits of them."""
        return self.resilience.compare_replicas and self.train.numerics is Numerics.EXACT
