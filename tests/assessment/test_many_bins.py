"""What errors of many bins compute bin by bin is that of one system of all, and repeats share it."""

import numpy as np
import pytest
from scipy.linalg import block_diag

import homodyne_dask as hd
from homodyne_dask.assessment import assess, score_tests, speckle_noise
from homodyne_dask.assessment.fitted_cells import fitted_cells
from homodyne_dask.assessment.speckle_covariance import likely_sizes, regular
from homodyne_dask.fitting.start import initial_values
from tests.ingest_files import repeats

Q, N, SCANS, PHI = 0.0054, 60, 5, (-60.0, 0.0, 60.0)


def store_of(folder, scans=SCANS, contrast=0.3, faster=()):
    rng, made = np.random.default_rng(1), []
    lag = np.abs(np.subtract.outer(np.arange(N), np.arange(N)))
    for k in range(scans):
        f = np.exp(-(Q**2) * 2e3 * dict(faster).get(k, 1.0) * lag)
        made.append(1 + contrast * f + rng.normal(0, 0.02, (len(PHI), N, N)))
    return repeats(folder, made, q=Q, phi=PHI, dt=1.0, sigma=0.02)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return store_of(tmp_path_factory.mktemp("repeats"))


def cells_of(store, **options):
    computed = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            assess,
            "fitted_cells",
            lambda *arguments: computed.append(fitted_cells(*arguments)) or computed[0],
        )
        hd.fit(store, "brownian", **options)
    return computed[0]


@pytest.fixture(scope="module", params=["individual", "shared"])
def cells(request, store):
    return cells_of(store, scaling=request.param)


def dense(cells):
    """Return derivatives of all cells by offsets, contrasts and theta, in the order of cells.bins."""
    of_bins = {
        b: (levels, columns)
        for kind in cells.kinds
        for b, levels, columns in zip(kind.bins, kind.levels.columns, kind.columns, strict=True)
    }
    levels, columns = zip(*(of_bins[b] for b in cells.bins), strict=True)
    return np.hstack([block_diag(*levels), np.vstack(columns)])


def test_the_variance_of_a_sum_of_residuals_is_that_of_the_whole_system(cells, monkeypatch):
    monkeypatch.setattr("homodyne_dask.assessment.fitted_cells.LEAST_LEFT", 0.0)
    rng = np.random.default_rng(0)
    X = dense(cells)
    weight = np.concatenate(
        [
            cells_of_bin.noise.cells.pairs * cells_of_bin.weight
            for cells_of_bin in cells.bins.values()
        ]
    )
    noises = [cells_of_bin.noise for cells_of_bin in cells.bins.values()]
    noise = block_diag(*(noise.of_cells.of_sizes(noise.sizes) for noise in noises))
    residual_of_data = np.eye(len(X)) - X @ np.linalg.pinv(X.T * weight @ X) @ (X.T * weight)
    share, mix = rng.normal(size=cells.residual.shape), rng.normal(size=(len(cells.intervals), 2))
    alone = np.array([3, 1])
    both = np.column_stack([np.eye(len(mix))[:, alone], mix])
    weight_of_data = residual_of_data.T @ np.vstack(
        [(share[b, :, None] * both)[of_bin.cells] for b, of_bin in cells.bins.items()]
    )
    expected = (weight_of_data * (noise @ weight_of_data)).sum(0)
    variance, _ = cells.variance(share, alone, mix, by_noise=False)
    np.testing.assert_allclose(variance, expected, rtol=1e-6)


def test_variances_of_each_bin_alone_are_those_of_sums_over_this_bin(cells):
    rng, alone = np.random.default_rng(0), np.array([2, 0])
    for kind in cells.kinds:
        weights = rng.normal(size=(len(kind.bins), len(kind.cells), 2))
        of_each = cells.variances_alone(kind, alone, weights)
        for n, b in enumerate(kind.bins):
            share, mix = np.zeros(cells.residual.shape), np.zeros((len(cells.intervals), 2))
            share[b, kind.cells], mix[kind.cells] = 1, weights[n]
            expected = cells.variance(share, np.array(kind.cells)[alone], mix, by_noise=True)
            for values, of_bin in zip(of_each, expected, strict=True):
                np.testing.assert_allclose(values[n], of_bin, rtol=1e-10)


@pytest.mark.parametrize("bins", ["one", "all"])
def test_a_score_is_that_of_the_whole_system(cells, bins):
    rng = np.random.default_rng(0)
    plain = [kind.columns for kind in cells.kinds]
    smooth, alone = np.zeros((*cells.residual.shape, 0)), dict.fromkeys(cells.bins, 1)
    metric = score_tests._Metric(cells, plain, smooth, alone)
    some = list(cells.bins)[:1] if bins == "one" else list(cells.bins)
    k = 1 if bins == "one" else 2
    column = {b: rng.normal(size=(len(cells.bins[b].cells), k)) for b in some}
    change = np.zeros((*cells.residual.shape, k))
    for b, changes in column.items():
        change[b, cells.bins[b].cells] = changes
    other = score_tests._Column("other", (), rng.normal(size=change.shape))
    _, outside = metric.outside([other, other._replace(change=change)])
    if bins == "one":
        outside = dict(metric.alone(change))[some[0]]
    assert outside is not None
    parts = []
    for b, of_bin in cells.bins.items():
        noise = of_bin.noise
        (fit,) = speckle_noise.left_unexplained([noise], smooth[b, of_bin.cells])
        parts.append(regular(noise.of_cells.of_sizes(likely_sizes(fit, noise.least_pixels))))
    inverse = np.linalg.inv(block_diag(*parts))
    X = dense(cells)
    weighting = inverse - inverse @ X @ np.linalg.pinv(X.T @ inverse @ X) @ X.T @ inverse
    d = np.vstack(
        [
            column.get(b, np.zeros((len(cells_of_bin.cells), k)))
            for b, cells_of_bin in cells.bins.items()
        ]
    )
    residual = np.concatenate([cells_of_bin.noise.residual for cells_of_bin in cells.bins.values()])
    information = np.linalg.inv(outside.inverse)
    np.testing.assert_allclose(information, d.T @ weighting @ d, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(outside.score, d.T @ weighting @ residual, rtol=1e-6, atol=1e-9)


def test_the_test_of_a_bin_is_as_many_as_there_are_bins(store, cells):
    scan = hd.open_dataset(store)
    scores = score_tests.score_tests(scan, cells, np.full(len(scan.bins), 0.3), ())
    of_bins = [score for score in scores if score.name == "bin"]
    assert [score.place for score in of_bins] == [bin.place(scan) for bin in cells.bins.values()]
    assert {score.among for score in of_bins} == {SCANS * len(PHI)}


def test_no_matrix_of_an_individual_fit_has_a_row_for_each_bin(store):
    assert cells_of(store).inverse.shape == (1, 1)  # of D0, not of 15 contrasts and offsets, too


def test_repeats_share_the_noise_of_their_model_and_are_one_in_its_check(store, cells, monkeypatch):
    assert [len(cells_of_bin.members) for cells_of_bin in cells.bins.values()] == [SCANS] * len(PHI)
    computed, plain = [], speckle_noise.noise_of_fields
    monkeypatch.setattr(
        speckle_noise, "noise_of_fields", lambda *arguments: computed.append(1) or plain(*arguments)
    )
    shared = hd.fit(store, "brownian")
    assert len(computed) <= 2 * len(PHI)
    monkeypatch.setattr(speckle_noise.BinData, "alike", lambda *_: False)
    computed.clear()
    apart = hd.fit(store, "brownian")
    assert len(computed) >= SCANS * len(PHI)
    for name in ("stderr", "dof"):
        np.testing.assert_allclose(
            shared.parameters[name].values, apart.parameters[name].values, rtol=0.03
        )
    for result in (shared, apart):
        assert not result.misfit
        assert result.errors.noise is not None
    np.testing.assert_allclose(
        shared.errors.noise["weighted_ratio"], apart.errors.noise["weighted_ratio"], rtol=0.1
    )


def test_weights_gain_nothing_of_a_parameter_that_its_prior_determines(store):
    """The variance of priors was in the covariance of weighted fits alone: the ratio was far above 1."""
    result = hd.fit(store, "brownian", prior={"D0": (2e3, 1e-2)})
    assert result.errors.noise["weighted_ratio"].values[0] == pytest.approx(1.0, abs=0.01)


def test_a_scan_that_deviates_from_its_repeats_stays_by_itself_and_is_named(tmp_path):
    store = store_of(tmp_path, faster={3: 1.5})
    result = hd.fit(store, "brownian")
    check = result.diagnosis.check
    assert check is not None
    assert check.misfit
    assert check.where.endswith("of scan 4")
    assert check.alternative.place[1:] == (4,)


def test_the_start_of_a_fit_of_repeats_looks_at_the_mean_of_the_scans(store, monkeypatch):
    bins, plain = [], initial_values.transport_minima
    monkeypatch.setattr(
        initial_values,
        "transport_minima",
        lambda summary, *arguments: bins.append(summary.c2.shape[0]) or plain(summary, *arguments),
    )
    assert hd.fit(store, "brownian").converged
    assert bins == [len(PHI)]


def sectors_and_rings(path, q, *, pixels, contrast, frames=100, seed=0):
    """Counts of Gaussian speckle with g1 = exp(-Γ τ): bins of unequal pixels and unequal contrast."""
    rng, dt, c2 = np.random.default_rng(seed), 0.1, []
    lag = dt * np.abs(np.subtract.outer(np.arange(frames), np.arange(frames)))
    for place, number, modes in zip(q, pixels, np.round(1 / contrast).astype(int), strict=True):
        root = np.linalg.cholesky(np.exp(-2e4 * place**2 * lag) + 1e-9 * np.eye(frames))
        shape = frames, number * modes
        fields = root @ (rng.normal(size=shape) + 1j * rng.normal(size=shape))
        counts = rng.poisson(0.25 * (np.abs(fields) ** 2).reshape(frames, number, modes).mean(2))
        c2.append(counts @ counts.T / number / np.outer(*[counts.mean(1)] * 2))
    hd.ingest(np.array(c2), path, q=q, phi=np.arange(len(q)) * 20.0, dt=dt)
    return path


SECTORS = np.repeat([0.005, 0.01], 6)
RINGS = 0.007 * 1.003 ** np.arange(12)
DECAYED = np.concatenate([RINGS[:6], 0.05 * 1.003 ** np.arange(6)])


@pytest.mark.long
@pytest.mark.parametrize(
    ("q", "model", "options", "places"),
    [
        (SECTORS, "brownian", {}, 2),
        (SECTORS, "power_law", {"loss": "huber"}, 2),
        (SECTORS, "frozen + brownian", {"offset": "prior=1:0.001"}, 2),
        (SECTORS, "brownian", {"weighting": "speckle"}, 2),
        (RINGS, "brownian", {}, 4),
        (DECAYED, "brownian", {}, 5),
    ],
)
def test_bins_of_one_noise_have_the_errors_that_each_has_alone(
    tmp_path, monkeypatch, q, model, options, places
):
    pixels = np.tile([300, 150, 80, 300, 200, 120], 2)
    contrast = np.tile([1 / 5, 1 / 4], 6)
    store = sectors_and_rings(tmp_path / "s.zarr", q, pixels=pixels, contrast=contrast)
    computed, plain = [], speckle_noise.noise_of_model

    def counting(point, data, *arguments):
        computed.append(data.bin)
        return plain(point, data, *arguments)

    monkeypatch.setattr(speckle_noise, "noise_of_model", counting)
    together = hd.fit(store, model, friedel="off", **options)
    first, groups = len(computed), len(set(computed))
    computed.clear()
    monkeypatch.setattr(speckle_noise.BinData, "alike", lambda *_: False)
    apart = hd.fit(store, model, friedel="off", **options)
    assert places <= groups <= first < len(computed)  # of contrasts far from each other several
    assert groups < len(q)
    assert together.misfit == apart.misfit
    # those of the noise: with so many bins the errors that count are from the scatter between bins
    of_noise = together.errors.noise, apart.errors.noise
    for name, tolerance in (("stderr", 0.03), ("dof", 0.1)):
        np.testing.assert_allclose(*(noise[name] for noise in of_noise), rtol=tolerance)
    size = [noise["pixels"] * noise["mean_counts"] ** 2 for noise in of_noise]
    np.testing.assert_allclose(*size, rtol=0.3)
