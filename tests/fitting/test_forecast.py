"""What a plan foretells of a pass is what the pass then reports."""

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import OptionError
from homodyne_dask.store.chunk_reader import chunk_path
from homodyne_dask.sweep import block_cache
from tests.sweep.plans import streaming_sweep
from tests.synthetic import FAST_DECAY, angles, measured, store


@pytest.fixture(scope="module")
def fast(tmp_path_factory):
    """3 angles of 1000 frames, three blocks; beyond 20 frames f is gone."""
    return store(measured(FAST_DECAY, 1000, angles(3)), tmp_path_factory.mktemp("fast"))


def given(theta) -> dict[str, float]:
    return dict(zip(hd.LAMINAR_FLOW.names, theta.tolist(), strict=True))


@pytest.mark.parametrize("select", [{}, {"frames": (0, 990)}], ids=["whole", "part"])
def test_tiles_and_sub_blocks_are_those_of_the_pass(fast, select):
    block_cache.forget()
    scan = fast.select(**select)
    found = hd.forecast(scan, hd.LAMINAR_FLOW, gap="200 um", min_lag=2, initial=given(FAST_DECAY))
    sweep = streaming_sweep(scan, min_lag=2)
    sweep(FAST_DECAY)
    assert found.needed == sweep.cost.read
    assert found.computed == sweep.cost.computed / sweep.cost.sub_blocks
    assert found.computed < 0.7
    assert found.theta == given(FAST_DECAY)


@pytest.mark.long
def test_under_a_loss_every_tile_is_read_and_computed(fast):
    options = {"gap": "200 um", "loss": "huber", "initial": given(FAST_DECAY)}
    found = hd.forecast(fast, hd.LAMINAR_FLOW, **options)
    assert found.needed == 3
    assert found.computed == 1
    assert found.first > 0
    with pytest.raises(OptionError, match="choose a loss"):
        hd.plan(fast, hd.LAMINAR_FLOW, loss_scale=2.0)


def test_bytes_are_those_of_the_files(fast):
    found = hd.forecast(
        fast, hd.LAMINAR_FLOW, gap="200 um", memory="stream", initial=given(FAST_DECAY)
    )
    tiles = [(0, 0), (0, 1), (1, 1)]
    files = [chunk_path(fast.path, 1, b, tile) for b in range(3) for tile in tiles]
    assert found.bytes_read == sum(path.stat().st_size for path in files)
    assert found.later == found.first > 0
    assert np.isfinite(found.peak)


def test_a_forecast_needs_the_gap(fast):
    with pytest.raises(OptionError, match="needs the gap"):
        hd.forecast(fast, hd.LAMINAR_FLOW)


def test_each_thread_of_a_cluster_that_is_not_there_takes_its_memory(fast):
    def found(workers: str):
        options = {"gap": "200 um", "initial": given(FAST_DECAY), "workers": workers}
        return hd.forecast(fast, hd.LAMINAR_FLOW, **options)

    found("1:8")  # afterwards the process of the tests has its peak
    eight, one = found("1:8"), found("1:1")
    of_thread = one.plan.layout.working_bytes(7)
    assert eight.peak - one.peak == pytest.approx(7 * of_thread, rel=0.2)


def test_a_worker_may_keep_more_than_its_share(fast):
    """Of two workers one kept nearly all blocks: tasks move, and blocks stay where they were."""
    options = {"gap": "200 um", "initial": given(FAST_DECAY), "workers": "2:1"}
    resident, streaming_sweep = (
        hd.forecast(fast, hd.LAMINAR_FLOW, memory=memory, **options)
        for memory in ("resident", "stream")
    )
    share = resident.plan.layout.resident_bytes // 2
    assert resident.peak - streaming_sweep.peak > 1.5 * share
