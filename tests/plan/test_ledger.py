"""Masks of microbatches."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from planaria.plan.ledger import mask_of, members_of


@given(st.sets(st.integers(0, 12)).map(sorted))
def test_a_mask_has_the_microbatches_that_it_is_made_of(microbatches: list[int]) -> None:
    assert members_of(mask_of(microbatches)) == microbatches
