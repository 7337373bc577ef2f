"""Initial values of many bins are searched for among averages over bins that see nearly one f."""

from dataclasses import replace

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.fitting.start import averages
from homodyne_dask.fitting.start.averages import Q_STEP, averaged_over_bins, binned_averages

DIFFUSION, DT = 2000.0, 0.1


def scan_of(folder, q, phi, contrast=0.2, frames=20, name="scan"):
    lag = DT * np.abs(np.subtract.outer(np.arange(frames), np.arange(frames)))
    f = np.exp(-DIFFUSION * np.square(q)[:, None, None] * lag)
    c2 = 1 + np.broadcast_to(contrast, len(q))[:, None, None] * f
    c2 += np.random.default_rng(0).normal(0, 0.02, c2.shape)
    c2 = (c2 + np.swapaxes(c2, 1, 2)) / 2
    path = folder / f"{name}.zarr"
    hd.ingest(c2.astype(np.float32), path, q=q, phi=phi, dt=DT)
    return hd.open_dataset(path)


def averages_over(scan, model, q_step=Q_STEP, **options):
    request = prepare(scan, model, **options)
    stored = binned_averages(scan, request.problem)
    return stored, averaged_over_bins(stored, scan, q_step)


@pytest.fixture(scope="module")
def rings(tmp_path_factory):
    q = np.repeat(np.geomspace(0.02, 0.05, 60), 3)
    return scan_of(tmp_path_factory.mktemp("rings"), q, np.tile([0.0, 120.0, 240.0], 60))


def test_sectors_of_a_ring_are_one_where_f_depends_on_q_alone(rings):
    stored, together = averages_over(rings, hd.BROWNIAN, q_step=0)
    np.testing.assert_array_equal(together.q, np.unique(rings.q))  # a rate per ring is told by q
    np.testing.assert_allclose(together.weight.sum(0), stored.weight.sum(0), rtol=1e-12)
    mean = (stored.weight * stored.c2).reshape(60, 3, -1).sum(1) / together.weight
    np.testing.assert_allclose(together.c2, mean, rtol=1e-12)


def test_sectors_under_shear_stay_apart(rings):
    _, together = averages_over(rings, hd.LAMINAR_FLOW, gap="200 um")
    assert len(together.q) == len(rings.q)


def test_rings_within_a_hundredth_of_q_are_one(tmp_path):
    q = np.geomspace(0.005, 0.02, 1000)
    scan = scan_of(tmp_path, q, np.zeros(1000), frames=12)
    _, together = averages_over(scan, hd.BROWNIAN)
    assert 100 < len(together.q) < 160
    far = np.abs(together.q[:, None] / q - 1).min(1)
    assert far.max() < Q_STEP / 2


def test_bins_whose_c2_rises_and_bins_of_other_cells_stay_apart(rings):
    stored, together = averages_over(rings, hd.BROWNIAN, q_step=0)
    third = np.arange(len(stored.q)) % 3 == 1  # one of the sectors of each ring
    rising = replace(stored, c2=np.where(third[:, None], 2.4 - stored.c2, stored.c2))
    late = stored.t2 - stored.t1 > 0.5
    short = replace(stored, weight=np.where(third[:, None] & late, 0.0, stored.weight))
    for mixed in (rising, short):
        apart = averaged_over_bins(mixed, rings)
        assert len(apart.q) == 2 * len(together.q)


def test_few_bins_stay_as_they_are(tmp_path):
    scan = scan_of(tmp_path, np.geomspace(0.01, 0.0101, 15), np.zeros(15))
    stored, together = averages_over(scan, hd.BROWNIAN)
    assert together is stored


@pytest.mark.parametrize("dead", [False, True], ids=["all alike", "every other without contrast"])
def test_the_fit_ends_where_that_of_all_averages_does(tmp_path, monkeypatch, dead):
    contrast = np.where(np.arange(200) % 2 * dead, 0.001, 0.2)
    scan = scan_of(tmp_path, np.geomspace(0.02, 0.05, 200), np.full(200, np.nan), contrast)
    together = hd.fit(scan, "brownian").params["D0"]
    monkeypatch.setattr(averages, "MANY_BINS", 1000)
    alone = hd.fit(scan, "brownian").params["D0"]
    assert together.value == pytest.approx(alone.value, abs=0.01 * alone.stderr)
    assert together.value == pytest.approx(DIFFUSION, abs=4 * together.stderr)


def test_each_ring_of_many_has_its_rate(rings):
    each = hd.fit_each(rings, "brownian", per={"ring": "D0"})
    values = each.table["value"].sel(param="D0").values
    np.testing.assert_allclose(values, DIFFUSION, rtol=0.2)
