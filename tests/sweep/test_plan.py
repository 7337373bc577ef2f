"""A plan covers each selected pair once, refuses what cannot work, and leaves tasks with who had them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import homodyne_dask as hd
from homodyne_dask.cluster.workers import (
    LONGEST_TASK_SECONDS,
    MAX_TASK_SECONDS,
    PAIRS_PER_SECOND,
    Workers,
    workers_asked,
)
from homodyne_dask.errors import OptionError, PlanError, SelectionError
from homodyne_dask.store import schema
from homodyne_dask.store.chunks import REQUESTS, most_bytes
from homodyne_dask.sweep.distributed_tasks import assign_tasks, weight
from homodyne_dask.sweep.layout import (
    AHEAD_BYTES,
    MAX_BLOCK_BYTES,
    MIN_TASK_SECONDS,
    SCHEDULER_SECONDS,
    SHARED_BLOCK_BYTES,
    Run,
    _runs_of,
    layout,
    longest_task,
    runs,
)
from homodyne_dask.sweep.plan import make_plan
from tests.benchmarks.scaling import layout_of
from tests.sweep.plans import scan_to_plan
from tests.synthetic import FLOW, measured, store


def pairs_by_tile(of, min_lag):
    used = np.flatnonzero(of.use)
    side = schema.tile_side(of.n_frames)
    i, j = np.meshgrid(used, used, indexing="ij")
    far = j - i >= min_lag
    tiles, counts = np.unique(
        np.stack([i[far] // side, j[far] // side]), axis=1, return_counts=True
    )
    return {(int(a), int(b)): int(c) for (a, b), c in zip(tiles.T, counts, strict=True)}


@settings(max_examples=80, deadline=None)
@given(
    n=st.integers(3, 1600),
    window=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    min_lag=st.integers(1, 700),
    masked=st.floats(0, 0.9),
    seed=st.integers(0, 99),
)
def test_every_pair_of_a_selection_lies_in_one_tile_and_is_counted(
    n, window, min_lag, masked, seed
):
    first, last = sorted(int(w * n) for w in window)
    mask = np.random.default_rng(seed).random(n) >= masked
    of = scan_to_plan(n, bins=2, frames=(first, last), mask=mask)
    wanted = pairs_by_tile(of, min_lag)
    if not wanted:
        with pytest.raises(SelectionError, match="no pair of frames is left"):
            layout(of, min_lag)
        return
    found = layout(of, min_lag)
    assert len(set(found.tiles)) == len(found.tiles)
    assert set(wanted) <= set(found.tiles)
    assert found.pairs == 2 * sum(wanted.values())


@given(
    q=st.lists(st.sampled_from([0.004, 0.005, 0.006, np.nan]), min_size=1, max_size=150),
    n=st.sampled_from([10, 300, 512, 513]),
)
@settings(max_examples=60, deadline=None)
def test_every_bin_is_in_one_group_and_bins_of_many_frames_in_that_of_their_q(q, n):
    found = layout(scan_to_plan(n, q=q))
    assert found.block_bytes <= MAX_BLOCK_BYTES
    members = [b for group in found.groups for b in group]
    assert sorted(members) == list(range(len(q)))
    most = 0
    for group in found.groups:
        assert len(group) <= found.padded_bins
        number = len({str(q[b]) for b in group})
        most = max(most, number)
        if number > 1:
            assert 4 * len(group) * found.side**2 <= SHARED_BLOCK_BYTES
    assert (most > 1) == found.several_q
    assert n <= 512 or most == 1


def test_thousands_of_small_bins_share_few_blocks_whatever_the_workers_are():
    found = layout(scan_to_plan(15, q=np.linspace(0.005, 0.02, 5000)))
    assert len(found.groups) == 20
    assert len(runs(found, 1)) == len(runs(found, 64)) == 20


def test_bins_that_have_parameters_of_their_own_share_no_block():
    found = layout(scan_to_plan(15, q=np.linspace(0.005, 0.02, 6)), apart=np.arange(6) // 2)
    assert found.groups == ((0, 1), (2, 3), (4, 5))


@given(tiles=st.integers(1, 300), groups=st.integers(1, 4), threads=st.integers(1, 64))
@settings(max_examples=60, deadline=None)
def test_tasks_are_aligned_runs_that_cover_every_tile_once(tiles, groups, threads):
    found = replace(
        layout(scan_to_plan(64)), tiles=tuple((0, n) for n in range(tiles)), groups=((0,),) * groups
    )
    tasks = runs(found, threads)
    lengths = [task.length for task in tasks]
    assert lengths == sorted(lengths, reverse=True)
    covered = []
    for task in tasks:
        assert task.length & (task.length - 1) == 0
        assert found.tiles.index(task.tiles[0]) % task.length == 0
        covered += [(task.group, n) for _, n in task.tiles]
    assert covered == [(g, n) for g in range(groups) for n in range(tiles)]


@pytest.mark.parametrize("frames", [60, 1100, 40_000])
def test_no_task_is_longer_than_what_lifetimes_of_workers_are_chosen_for(frames):
    found = layout(scan_to_plan(frames, 23))
    longest = [max(len(task.tiles) for task in runs(found, threads)) for threads in (1, 7, 1000)]
    assert longest[0] == max(longest)
    assert 0 < longest_task(found) <= LONGEST_TASK_SECONDS


REFUSED = [
    ("resident data too large", (4, 8, 4 * 10**9), "resident", "needs .* use memory='stream'"),
    ("a worker too small", (4, 8, 10**9), "auto", "a worker would need .*, but has 250 MB"),
    ("a worker too small to stream", (1, 8, 9 * 10**8), "stream", "a worker would need"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("word", "workers", "memory", "says"), REFUSED, ids=[w for w, *_ in REFUSED]
)
def test_what_does_not_fit_is_refused_with_numbers(word, workers, memory, says):
    found = layout(scan_to_plan(20000, 32))
    with pytest.raises(PlanError, match=says):
        make_plan(found, Workers(*workers), "static", 3, 32, memory)


def test_data_stay_with_the_workers_when_they_fit():
    found = layout(scan_to_plan(1000, 8))
    assert make_plan(found, Workers(2, 4, 10**10), "static", 3, 8).resident
    assert not make_plan(found, Workers(2, 4, 10**10), "static", 3, 8, "stream").resident
    large = layout(scan_to_plan(40000, 32))
    assert not make_plan(large, Workers(2, 4, 10**10), "static", 3, 32).resident


@pytest.mark.parametrize("min_lag", [10, 10**13])  # the absurd one takes no memory
def test_no_pair_left_is_said_before_any_work(min_lag):
    with pytest.raises(SelectionError, match=rf"10 of 10 frames .* min_lag is {min_lag};"):
        layout(scan_to_plan(10), min_lag=min_lag)
    with pytest.raises(SelectionError, match="0 of 10 frames are in use"):
        layout(scan_to_plan(10, mask=np.zeros(10, bool)))


def test_a_plan_needs_no_gap(tmp_path):
    scan_to_plan = store(measured(FLOW, 40, [0.0]), tmp_path)
    assert "pairs              780" in str(hd.plan(scan_to_plan, hd.LAMINAR_FLOW))
    with pytest.raises(OptionError, match="needs the gap"):
        hd.fit(scan_to_plan, hd.LAMINAR_FLOW)


def test_memory_grows_with_the_grams_of_a_model_and_with_threads():
    """47 parameters, 32 bins, up to 16 tiles a task: some 25 Grams of 0.64 MB, and a table of all frames."""
    found = layout(scan_to_plan(20_000, 32))

    def needed(parameters, threads=1):
        made = make_plan(found, Workers(1, threads, 10**12), "free", parameters, 32, "stream")
        return made.memory_per_worker

    tiles = max(len(run.tiles) for run in runs(found, 1))
    grams = tiles * 32 * (50**2 - 10**2) * 8
    assert grams < needed(47) - needed(7) < 3 * grams + 3 * 50 * 20_000 * 8
    of_threads = [needed(47, 2) - needed(47), needed(47, 3) - needed(47, 2)]
    assert of_threads[0] == of_threads[1] > grams


def test_few_bins_need_memory_for_blocks_of_frames():
    few, many = (layout(scan_to_plan(3000, bins)) for bins in (7, 8))
    assert few.working_bytes(47) > many.working_bytes(47) + 6 * 7 * 33**2 * 3 * 40 * 8


def test_what_a_store_by_url_fetches_ahead_is_memory_of_a_worker():
    def needed(path: str, threads: int) -> int:
        cut = layout(replace(scan_to_plan(3000, 23), path=path))
        return make_plan(cut, Workers(1, threads, 10**12), "", 7, 23, "stream").memory_per_worker

    def fetched(threads: int) -> int:
        return needed("s3://bucket/a.zarr", threads) - needed("/a.zarr", threads)

    assert fetched(5) - fetched(4) == AHEAD_BYTES
    assert fetched(1) == AHEAD_BYTES + REQUESTS * most_bytes(512)


@pytest.mark.parametrize("pairs", [1e8, 1e9, 1e10, 1e11])
@pytest.mark.parametrize("threads", [1, 80, 800, 8000])
def test_the_scheduler_is_not_slower_than_the_threads_it_serves(pairs, threads):
    found = layout_of(pairs)
    tasks = runs(found, threads)
    computing = found.pairs / PAIRS_PER_SECOND / threads
    longest = max(len(task.tiles) for task in tasks) * found.pairs / found.blocks / PAIRS_PER_SECOND
    assert len(tasks) * SCHEDULER_SECONDS <= computing + max(2 * longest, 2 * MIN_TASK_SECONDS)
    assert longest <= MAX_TASK_SECONDS


def test_tasks_are_as_short_as_ever_where_the_scheduler_is_no_limit():
    found = layout_of(1e10)
    assert runs(found, 16) == _runs_of(found, 16, MIN_TASK_SECONDS)
    assert len(runs(found, 8000)) < len(_runs_of(found, 8000, MIN_TASK_SECONDS)) / 4


def test_a_plan_for_a_cluster_that_is_not_there_is_that_of_its_workers(tmp_path):
    scan_to_plan = store(measured(FLOW, 40, [0.0]), tmp_path)
    plan = hd.plan(scan_to_plan, hd.LAMINAR_FLOW, workers=1000)
    assert (plan.workers.processes, plan.workers.threads) == (1000, 8000)
    assert plan.workers.memory == 1000 * 16 * 10**9
    assert "1,000 workers, 8,000 threads (as requested)" in str(plan)
    assert "driver" in str(plan)
    other = hd.plan(scan_to_plan, hd.LAMINAR_FLOW, workers="10:4:32GB").workers
    assert (other.processes, other.threads, other.memory) == (10, 40, 320 * 10**9)
    with pytest.raises(OptionError, match="give only one of them"):
        hd.plan(scan_to_plan, hd.LAMINAR_FLOW, workers=10, client="any")


@pytest.mark.parametrize("given", [0, -1, "many", "10:x", "1:2:3:4", "10:8:much", True, "10:0", ""])
def test_what_is_no_number_of_workers_is_said(given):
    with pytest.raises(OptionError, match="is not a number of workers"):
        workers_asked(given)


@pytest.mark.parametrize(("frames", "groups"), [(512, 4), (300, 2), (100, 1)])
def test_a_block_holds_more_bins_where_these_have_fewer_frames(frames, groups):
    found = layout(scan_to_plan(frames, 100))
    assert len(found.groups) == groups
    assert found.block_bytes <= MAX_BLOCK_BYTES


OFF, ON = (0, 1), (2, 2)


def run(*tiles: tuple[int, int]) -> Run:
    return Run(0, (0,), tiles, len(tiles))


def test_who_has_too_much_gives_to_who_has_least():
    tasks = [run(OFF, OFF), run(OFF), run(OFF), run(ON, ON)]
    assert assign_tasks(tasks, {0: "a", 1: "a", 2: "a", 3: "b"}) == {"a": [0], "b": [1, 2, 3]}


@given(
    sizes=st.lists(st.integers(1, 16), min_size=1, max_size=60).map(lambda s: sorted(s)[::-1]),
    names=st.lists(st.sampled_from("abcde"), min_size=60, max_size=60),
)
def test_every_task_is_given_once_and_none_has_more_than_a_share_and_a_task(sizes, names):
    tasks = [run(*[OFF] * size) for size in sizes]
    owners = dict(enumerate(names[: len(tasks)]))
    given_to = assign_tasks(tasks, owners)
    assert sorted(n for mine in given_to.values() for n in mine) == list(range(len(tasks)))
    fair = sum(sizes) / len(set(owners.values()))
    for mine in given_to.values():
        assert sum(weight(tasks[n]) for n in mine) <= 1.05 * fair + max(sizes)
