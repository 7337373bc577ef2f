"""c2 averaged over cells before ingest: a fit compares means of cells with means of the model."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import homodyne_dask as hd
import ingest
from homodyne_dask.errors import OptionError, SelectionError
from homodyne_dask.fitting.fit import plan_for
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.models import MODELS
from homodyne_dask.sweep.sweep import sweep_of
from tests import reference
from tests.esrf_files import averaged, cell_columns, cells_fit, esrf, mean_over, members
from tests.ingest_files import DT
from tests.speckle_scans import RING, STILL
from tests.synthetic import FLOW

N, CELLS, SIGMA = 90, (12, 1, 6), 0.003
"""Coarse cells: of up to 15 ages, lags that grow by 1.6 from cell to cell; little noise."""
STATIC, Q = np.array([3000.0, -0.2, 50.0]), (0.01, 0.014)
TIME = DT * np.arange(N)
INSIDE = members(N, *CELLS)
FIXED = {"D_offset": 50.0}


@dataclass(frozen=True)
class Made:
    store: Path
    full: np.ndarray

    def c2(self, b: int) -> np.ndarray:
        """What the store holds of each cell: float32."""
        return mean_over(INSIDE, self.full[b]).astype(np.float32).astype(float)


def made(folder, theta=STATIC, phi=(0.0, 0.0), q=Q, convention="physical", seed=0, sigma=SIGMA):
    rng, full = np.random.default_rng(seed), []
    for one, angle in zip(q, phi, strict=True):
        with np.errstate(over="ignore"):
            f = reference.CONVENTIONS[convention](theta, TIME, one, angle, 2e6)
        c2 = np.triu(1.0 + 0.3 * f + sigma * rng.standard_normal((N, N)), 1)
        full.append(c2 + c2.T + np.diag(np.full(N, 2.0)))
    full = np.stack(full)
    ttcf, age, lag, _ = averaged(full, *CELLS)
    folder.mkdir(parents=True, exist_ok=True)
    path = esrf(folder / "C.h5", ttcf, DT * age, DT * lag, q=10 * np.array(q))
    return Made(ingest.ingest(path, phi=phi, sigma=sigma).store, full)


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    return made(tmp_path_factory.mktemp("cells"))


@pytest.fixture(scope="module")
def fitted(cells):
    return hd.fit(cells.store, hd.STATIC, fixed=FIXED)


def moments_of(store, model, theta, frames=None, **options):
    scan = hd.open_dataset(store).select(frames=frames)
    request = prepare(scan, model, **options)
    plan = plan_for(request, None)
    return sweep_of(plan, scan.selection, request.problem, None).gram(np.asarray(theta))


def assert_same(found, columns, pairs, sigma=SIGMA):
    M = (columns * pairs / sigma**2) @ columns.T
    size = np.sqrt(np.diag(M))
    assert (np.abs(found - M) <= 1e-12 * np.outer(size, size)).all()


@pytest.mark.long
@pytest.mark.parametrize(("model", "theta", "convention"), [
    (hd.STATIC, STATIC, "physical"), (hd.LAMINAR_FLOW, FLOW, "physical"),
    (hd.LAMINAR_FLOW, FLOW, "homodyne"),
])  # fmt: skip
def test_the_gram_is_that_of_the_means_over_cells(tmp_path, model, theta, convention):
    phi = (10.0, 55.0)
    data = made(tmp_path, theta, phi, (0.01, 0.01), convention)
    options = {"gap": "200 um"} if model.shear else {}
    gram = moments_of(data.store, model, theta, convention=convention, **options)
    for b in range(2):
        X, pairs = cell_columns(theta, data.full[b], INSIDE, TIME, 0.01, phi[b], 2e6, convention)
        X[1] = data.c2(b) - 1
        assert_same(gram.moments[b], X, pairs)
    assert gram.pairs.tolist() == [len(INSIDE)] * 2


@pytest.mark.long
def test_a_fit_is_the_least_squares_of_the_cells(cells, fitted):
    data = [(cells.c2(b), INSIDE, TIME, Q[b], SIGMA) for b in range(2)]
    result = hd.fit(cells.store, hd.STATIC)
    theta, contrast, offset, chisqr, error = cells_fit(STATIC, data)
    np.testing.assert_allclose(result.parameters["stderr_naive"].values, error, rtol=1e-3)
    away = (result.parameters["value"].values - theta) / error
    assert np.abs(away).max() < 1e-3
    np.testing.assert_allclose(result.scaling["contrast"].values, contrast, rtol=1e-5)
    np.testing.assert_allclose(result.scaling["offset"].values, offset, rtol=1e-6)
    assert result.chisqr == pytest.approx(chisqr, rel=1e-6)
    assert result.scaling["ndata"].values.tolist() == [len(INSIDE)] * 2


def test_a_user_defined_model_is_averaged_over_cells_too(cells):
    """J = D0·t^alpha + D_offset at alpha = 0, written by hand."""
    mine = hd.separable(decay_of, [hd.Parameter("D", bounds=(1.0, 1e6))])
    gram = moments_of(cells.store, mine, [2000.0])
    for b in range(2):
        X, pairs = cell_columns([2000.0, 0.0, 0.0], cells.full[b], INSIDE, TIME, Q[b], 0.0)
        X[1] = cells.c2(b) - 1
        assert_same(gram.moments[b], X[:4], pairs)


def decay_of(theta, t1, t2, bin):
    import jax.numpy as jnp

    return jnp.exp(-theta[0] * bin.q**2 * (t2 - t1))


@pytest.mark.parametrize(("frames", "min_lag"), [((10, 80), 1), (None, 3), ((0, 60), 12)])
def test_only_cells_that_lie_inside_the_selection_count(cells, frames, min_lag):
    gram = moments_of(cells.store, hd.STATIC, STATIC, frames, min_lag=min_lag)
    first, stop = frames or (0, N)
    i, j = np.indices((N, N))
    there = (i >= first) & (j < stop) & (j - i >= min_lag)
    whole = [cell for cell in INSIDE if there[cell].all()]
    assert 0 < len(whole) < len(INSIDE)
    X, pairs = cell_columns(STATIC, cells.full[0], np.array(whole), TIME, Q[0], 0.0)
    X[1] = mean_over(np.array(whole), cells.full[0]).astype(np.float32).astype(float) - 1
    assert_same(gram.moments[0], X, pairs)


@pytest.mark.long
def test_a_loss_is_that_of_the_residuals_of_cells(tmp_path):
    data = made(tmp_path, seed=2)
    result = hd.fit(data.store, hd.STATIC, fixed=FIXED, loss="huber", loss_scale=0.7)
    parts = [(data.c2(b), INSIDE, TIME, Q[b], SIGMA) for b in range(2)]
    free = lambda start: [*start, 50.0]  # noqa: E731
    theta, _, _, cost, error = cells_fit(STATIC[:2], parts, "huber", 0.7, free)
    away = (result.parameters["value"].values[:2] - theta) / error
    assert result.converged
    assert np.abs(away).max() < 1e-3
    assert result.chisqr == pytest.approx(cost, rel=1e-6)


def test_what_cannot_be_done_with_cells_is_refused(cells):
    with pytest.raises(OptionError, match="float64 only: leave out precision"):
        hd.fit(cells.store, hd.STATIC, precision="mixed")
    narrow = hd.open_dataset(cells.store).select(frames=(3, 7))
    with pytest.raises(SelectionError, match="none of the 180 cells lies inside frames 3 to 6"):
        hd.fit(narrow, hd.STATIC)


@pytest.mark.long
def test_the_check_of_the_model_takes_the_cells(tmp_path, fitted):
    """Their means differ from those of the model at single pairs by far more than noise."""
    assert fitted.diagnosis.check.tests > 50
    assert fitted.diagnosis.check.deviating == 0
    data = made(
        tmp_path,
        np.array([2e4, -0.2, 50.0]),
        np.repeat([0.0, 45.0, 80.0], 3),
        3 * (0.008, 0.012, 0.02),
    )
    for model, misfit in ((hd.STATIC, False), (MODELS["stretched"], True)):
        result = hd.fit(data.store, model)
        assert result.converged
        assert result.misfit == misfit


def speckle_store(folder, seed=1):
    bright = replace(RING, mean=8.0, spacing=DT, theta=STILL * 0.1 / DT)
    c2 = np.nan_to_num(bright.scan(seed).c2).astype(float)
    full = c2 + c2.transpose(0, 2, 1) + 2 * np.eye(bright.frames)
    ttcf, age, lag, _ = averaged(full, *CELLS)
    path = esrf(folder / f"{seed}.h5", ttcf, DT * age, DT * lag, q=10 * np.array(bright.q))
    return bright.theta, ingest.ingest(path, phi=[0.0]).store


@pytest.mark.long
def test_means_are_weighted_by_their_noise_too(tmp_path):
    theta, data = speckle_store(tmp_path)
    pairs, weighted = (
        hd.fit(data, hd.STATIC, fixed={"D_offset": 0.0}, weighting=weighting)
        for weighting in ("pairs", "speckle")
    )
    table, errors = weighted.parameters, weighted.parameters["stderr"].values[:2]
    assert weighted.converged
    assert (table["method"].values[:2] == "speckle").all()
    assert (errors < 0.8 * pairs.parameters["stderr"].values[:2]).all()
    assert (np.abs(table["value"].values - theta)[:2] < 4 * errors).all()
