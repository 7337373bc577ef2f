"""Sums of Grams: always in the same pairs, whoever adds them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from homodyne_dask.kernels.gram import Gram, merge_runs, merge_tree


def leaves(count: int, seed: int = 0) -> list[Gram]:
    """Grams of very different size, so that another order of adding gives other bits."""
    rng = np.random.default_rng(seed)
    size = 10.0 ** rng.uniform(-8, 8, (count, 1, 1, 1))
    moments = rng.standard_normal((count, 2, 4, 4)) * size
    return [Gram(m, rng.integers(0, 10**6, 2)) for m in moments]


def in_order(grams: list[Gram]) -> Gram:
    moments = sum(g.moments for g in grams)
    return Gram(moments, sum(g.pairs for g in grams))


@given(powers=st.lists(st.integers(0, 4), min_size=1, max_size=12), data=st.data())
def test_merging_aligned_runs_first_changes_no_bit(powers, data):
    """Runs of falling length, the last of them not full."""
    lengths = [2**power for power in sorted(powers, reverse=True)]
    starts = np.cumsum([0, *lengths])[:-1]
    missing = data.draw(st.integers(0, lengths[-1] - 1))
    grams = leaves(sum(lengths) - missing, data.draw(st.integers(0, 99)))
    parts = [
        (length, merge_tree(grams[first : first + length]))
        for length, first in zip(lengths, starts, strict=True)
    ]
    here, there = merge_tree(grams), merge_runs(parts)
    assert here.moments.tobytes() == there.moments.tobytes()
    np.testing.assert_array_equal(here.pairs, there.pairs)


def test_runs_that_are_not_aligned_do_change_bits():
    """Else the property above would hold of any sum and say nothing."""
    grams = leaves(64)
    parts = [merge_tree(grams[first : first + 3]) for first in range(0, 64, 3)]
    assert merge_tree(grams).moments.tobytes() != merge_tree(parts).moments.tobytes()


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 33])
def test_the_sum_is_the_sum(count):
    grams = leaves(count)
    found, wanted = merge_tree(grams), in_order(grams)
    size = sum(np.abs(g.moments) for g in grams)
    assert (np.abs(found.moments - wanted.moments) <= 1e-14 * size).all()
    np.testing.assert_array_equal(found.pairs, wanted.pairs)
