"""What a pass reads and computes, what it may leave out, and how its Grams are merged as they arrive."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import homodyne_dask as hd
from homodyne_dask.errors import StoreError
from homodyne_dask.kernels.gram import Gram, merge_runs, merge_tree
from homodyne_dask.sweep import blocks as block_cache
from homodyne_dask.sweep import layout as layouts
from homodyne_dask.sweep.layout import layout, runs
from homodyne_dask.sweep.sweep import ArrivingGrams
from tests.kernels.gram_errors import worst_error
from tests.sweep.plans import scan_to_plan, streaming_sweep
from tests.synthetic import FAST_DECAY, FLOW, angles, fit_here, measured, module_scan, store

SLOW = np.array([200.0, -0.3, 20.0, 3e-6, 0.2, 2e-7, 5.0])
"""f changes little over 16 frames."""
fast = module_scan(lambda: measured(FAST_DECAY, 1100, angles(3)))
"""3 angles of 1100 frames: six blocks; beyond 20 frames f is gone."""


def far_chunk(scan) -> Path:
    return Path(scan.path, "c2/c/1/0/2")


@contextmanager
def without(path: Path) -> Iterator[None]:
    held = path.read_bytes()
    path.unlink()
    try:
        yield
    finally:
        path.write_bytes(held)


def test_a_chunk_without_any_f_left_is_not_read(fast):
    """Its sums are in the store."""
    block_cache.forget()
    whole = streaming_sweep(fast, min_lag=2).gram(FAST_DECAY)
    block_cache.forget()
    with without(far_chunk(fast)):
        sweep = streaming_sweep(fast, min_lag=2)
        assert sweep.gram(FAST_DECAY).moments.tobytes() == whole.moments.tobytes()
        assert (sweep.cost.read, sweep.cost.blocks) == (5, 6)
        assert sweep.cost.computed < 0.4 * sweep.cost.sub_blocks
        with pytest.raises(StoreError, match=r"labelled .* cannot be read"):
            sweep.gram(SLOW)


def test_a_selection_the_store_has_no_sums_of_reads_a_chunk_without_f_once(fast):
    block_cache.forget()
    sweep = streaming_sweep(fast.select(frames=(0, 1090)), min_lag=2)
    first = sweep.gram(FAST_DECAY)
    assert sweep.cost.read == 6
    with without(far_chunk(fast)):
        assert sweep.gram(FAST_DECAY).moments.tobytes() == first.moments.tobytes()
        assert sweep.cost.read == 5


@pytest.mark.parametrize(
    "options", [{}, {"convention": "homodyne"}, {"precision": "mixed"}, {"loss": "huber"}], ids=str
)
def test_bins_of_several_q_in_one_block_have_the_sums_of_a_block_for_each_q(
    options, tmp_path, monkeypatch
):
    q: Any = np.array([0.0054, 0.0054, 0.006, 0.05])
    scan = store(measured(FLOW, 80, 25.0 * np.arange(4), q=q), tmp_path)
    linear = np.tile([0.1, 0.2], (4, 1)) if "loss" in options else None
    thetas, grams = FLOW * (1 + 0.02 * np.arange(3))[:, None], []
    for most, blocks in ((layouts.SHARED_BLOCK_BYTES, 1), (0, 3)):
        monkeypatch.setattr(layouts, "SHARED_BLOCK_BYTES", most)
        sweep = streaming_sweep(scan, **options)
        assert len(sweep.layout.groups) == blocks
        grams.append([sweep.gram(FLOW, linear), *sweep.candidates(thetas), sweep.wide(thetas)])
    for shared, apart in zip(*grams, strict=True):
        np.testing.assert_array_equal(shared.pairs, apart.pairs)
        assert worst_error(shared.moments, apart.moments).max() < 1e-11


@pytest.mark.parametrize("select", [{"frames": (0, 1090)}, {"frames": (30, 1100)}], ids=str)
def test_sums_of_other_pairs_are_not_taken_from_the_store(fast, select):
    block_cache.forget()
    scan = fast.select(**select)
    sweep = streaming_sweep(scan)
    gram = sweep.gram(FAST_DECAY)
    frames = select["frames"][1] - select["frames"][0]
    assert gram.pairs.tolist() == [frames * (frames - 1) // 2] * 3
    inside = np.triu(np.ones((1100, 1100), bool), 1)
    inside[: select["frames"][0]] = False
    inside[:, select["frames"][1] :] = False
    for k in range(3):
        c2 = np.asarray(fast.dataset["c2"][k])[inside].astype(float) - 1
        w = np.median(scan.sigma_row[k]) ** -4.0
        np.testing.assert_allclose(gram.moments[k, 1, 1], w * (c2**2).sum(), rtol=1e-10)


@pytest.mark.long
def test_levels_lead_to_the_optimum_of_all_data(tmp_path, monkeypatch):
    scan = store(measured(SLOW, 700, angles(9)), tmp_path)
    straight = fit_here(scan, hd.LAMINAR_FLOW, gap="200 um")
    monkeypatch.setattr(layouts, "MIN_PAIRS_FOR_LEVELS", 0)
    through = fit_here(scan, hd.LAMINAR_FLOW, gap="200 um")
    assert [entry["level"] for entry in through.run.history if "level" in entry] == [16, 4]
    assert through.passes <= straight.passes
    one, other = through.parameters, straight.parameters
    apart = (one["value"] - other["value"]) / other["stderr_naive"]
    assert abs(apart).max() < 1e-3
    assert "16×16 means" in through.report(all=True)
    assert through.run.compilations["candidates"] <= 1


def test_a_cache_drops_what_was_used_least_recently_beyond_its_bytes():
    cache = block_cache.byte_cache(len)
    for key in "abc":
        block_cache.keep(cache, key, b"four", 12)
    assert cache.get("a") == b"four"
    block_cache.keep(cache, "d", b"four", 12)
    assert set(cache) == {"a", "c", "d"}
    block_cache.keep(cache, "e", b"more than all", 12)
    assert set(cache) == {"a", "c", "d"}
    block_cache.keep(cache, "d", b"four", 4)
    assert set(cache) == {"d"}


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
        layout(scan_to_plan(64, groups), apart=np.arange(groups)),
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


def leaves(count: int, seed: int = 0) -> list[Gram]:
    """Grams of very different size, so that another order of adding gives other bits."""
    rng = np.random.default_rng(seed)
    size = 10.0 ** rng.uniform(-8, 8, (count, 1, 1, 1))
    moments = rng.standard_normal((count, 2, 4, 4)) * size
    return [Gram(m, rng.integers(0, 10**6, 2)) for m in moments]


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
    total, size = merge_tree(grams), sum(np.abs(g.moments) for g in grams)
    assert (np.abs(total.moments - sum(g.moments for g in grams)) <= 1e-14 * size).all()
    np.testing.assert_array_equal(total.pairs, sum(g.pairs for g in grams))
