"""What halted workers report to have counted, and what of it counts."""

from __future__ import annotations

from planaria.plan.ledger import Ledger
from planaria.plan.plan import WorkerId
from planaria.protocol.messages.from_worker import Report
from planaria.protocol.step.halt_reports import Salvage


def reported(salvage: Salvage, ledgers: dict[int, Ledger]) -> Salvage:
    salvage.halt([WorkerId(worker) for worker in ledgers])
    for worker, ledger in ledgers.items():
        salvage.report(WorkerId(worker), Report(generation=1, step=1, ledger=ledger, held=()))
    return salvage


ONE, TWO, NONE = Ledger.of([[0], [0]]), Ledger.of([[0, 1], [0]]), Ledger.empty(2)


def test_workers_alone_count_what_each_of_them_reports() -> None:
    assert reported(Salvage(), {0: ONE, 1: Ledger.of([[1], []])}).counted(2) == TWO


def test_what_devices_share_counts_where_all_of_a_stage_report_the_same() -> None:
    assert reported(Salvage(num_sharing=2), {2: TWO, 3: TWO}).counted(2) == TWO
    assert reported(Salvage(num_sharing=2), {2: TWO, 3: ONE}).counted(2) == NONE
    assert reported(Salvage(num_sharing=2), {3: TWO}).counted(2) == NONE, "the other one is lost"


def test_what_devices_shared_before_an_earlier_loss_counts_until_they_report_anew() -> None:
    salvage = reported(Salvage(num_sharing=2), {2: ONE, 3: ONE}).again()
    assert salvage.counted(2) == ONE
    assert reported(salvage, {2: TWO, 3: TWO}).counted(2) == TWO
    assert reported(salvage.again(), {2: TWO, 3: ONE}).counted(2) == NONE
