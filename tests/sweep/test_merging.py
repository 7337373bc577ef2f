"""Grams merged as they arrive have the bits of those merged in the order of the plan."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homodyne_dask.kernels.gram import Gram, merge_runs
from homodyne_dask.sweep.layout import layout, runs
from homodyne_dask.sweep.merging import ArrivingGrams
from tests.sweep.plans import scan_to_plan


def gram(random) -> Gram:
    """Numbers whose sum depends on the order in which they are added."""
    return Gram(random.normal(size=(1, 2, 2)) * 10.0 ** random.integers(-8, 9), np.ones(1, int))


@given(
    tiles=st.integers(1, 200), groups=st.integers(1, 3), threads=st.integers(1, 64),
    seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_any_order_of_arrival_gives_the_bits_of_the_order_of_the_plan(tiles, groups, threads, seed):
    found = replace(
        layout(scan_to_plan(64, groups, q=np.arange(1, groups + 1))),
        tiles=tuple((0, n) for n in range(tiles)),
        pairs=10**8 * tiles * groups,  # so many that tiles are worth tasks of their own
    )
    tasks, random = runs(found, threads), np.random.default_rng(seed)
    assert len(tasks) > tiles * groups / 3
    grams = [gram(random) for _ in tasks]
    arriving = ArrivingGrams(tasks)
    for n in random.permutation(len(tasks)):
        arriving.add(int(n), grams[n])
    total = arriving.total(found)
    for group in range(groups):
        parts = [(t.length, grams[n]) for n, t in enumerate(tasks) if t.group == group]
        wanted = merge_runs(parts)
        assert total.moments[group].tobytes() == wanted.moments[0].tobytes()
    assert total.pairs.tolist() == [len([t for t in tasks if t.group == g]) for g in range(groups)]


def test_few_grams_are_held_where_many_tasks_come_about_in_order():
    found = replace(
        layout(scan_to_plan(64)), tiles=tuple((0, n) for n in range(20_000)), pairs=10**11
    )
    tasks, random = runs(found, 64), np.random.default_rng(0)
    arriving, most = ArrivingGrams(tasks), 0
    order = np.argsort(np.arange(len(tasks)) + random.uniform(0, 64, len(tasks)))
    for n in order:
        arriving.add(int(n), gram(random))
        most = max(most, len(arriving.held))
    assert len(tasks) > 500
    assert most < 64 + 15


def test_a_task_that_comes_twice_is_no_sum():
    found = layout(scan_to_plan(1200))
    arriving, random = ArrivingGrams(runs(found, 4)), np.random.default_rng(0)
    arriving.add(0, gram(random))
    with pytest.raises(KeyError):
        arriving.add(0, gram(random))
