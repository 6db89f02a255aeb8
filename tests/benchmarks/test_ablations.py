"""What Odyssey's ablations compare: plans that differ in who moves what, and in the order of sums."""

from __future__ import annotations

import pytest
from ablation_cases import NUM_DEVICES, ROUNDS, Load, Loss, Moves, Ranks, index_order, turns

LOSSES = [Loss(16, ranks, lost, 64) for ranks in Ranks for lost in range(NUM_DEVICES)]


@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.parametrize("moves", Moves)
def test_every_variant_gives_each_worker_what_it_lacks(loss: Loss, moves: Moves) -> None:
    plan = loss.plan(moves, 2)
    assert loss.lost not in plan.workers
    for worker, groups in plan.groups_of.items():
        arriving: dict[int, int] = {}
        for move in plan.transfers:
            if move.target == worker:
                assert move.group in loss.holders[move.source]
                arriving[move.group] = arriving.get(move.group, 0) + move.moved_bytes(plan.groups[move.group])
        lacking = set(groups) - set(loss.holders[worker])
        assert arriving == {group: plan.groups[group].moved_bytes for group in lacking}


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_matching_never_moves_more_and_balancing_moves_as_much(loss: Loss) -> None:
    ranked, matched, balanced = (Load.of(loss.plan(moves, 2)) for moves in Moves)
    assert matched.moved_bytes <= ranked.moved_bytes
    assert balanced.moved_bytes == matched.moved_bytes
    assert balanced.sent_bytes <= matched.sent_bytes


@pytest.mark.parametrize("ranks", Ranks)
def test_over_all_losses_matching_moves_less_than_half(ranks: Ranks) -> None:
    losses = [loss for loss in LOSSES if loss.ranks is ranks]
    ranked, matched = (
        sum(Load.of(loss.plan(moves, 2)).moved_bytes for loss in losses) for moves in (Moves.RANK_ORDER, Moves.MATCHED)
    )
    assert matched < 0.5 * ranked


def test_coloured_sums_follow_one_another_half_as_often_as_in_index_order() -> None:
    plan = Loss(16, Ranks.BY_PIPELINE, 1).plan(Moves.MATCHED, 2)
    in_a_row = {name: turns(plan, rounds(plan)) for name, rounds in ROUNDS.items()}
    assert in_a_row == {"index": 18, "coloured": 9}
    assert turns(plan, index_order(plan)) == len(plan.groups)
