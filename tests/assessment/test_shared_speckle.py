"""Bins that see one speckle in part: neighbouring rings with correlated fields, sectors that share pixels."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.assessment import shared_speckle
from homodyne_dask.assessment.shared_speckle import (
    MOST_DISTANCE,
    POWERS,
    Share,
    SharedSpeckle,
    SpeckleOfSums,
    _likely_shares,
    _LikelyShares,
    _Places,
    _SpeckleOfCells,
    shared_fields,
)
from homodyne_dask.assessment.speckle_covariance import correlation_and_deviation
from homodyne_dask.assessment.speckle_errors import SpeckleErrors
from homodyne_dask.fitting import speckle_weighting
from homodyne_dask.fitting.series.many_fits import Job, fit_on_worker
from homodyne_dask.solver._numpy_internals import one_blas_thread

FRAMES, PIXELS, MODES, COUNTS, DIFFUSION, DT = 100, 300, 4, 5.0, 8e3, 0.1
TRUTH = 2 * DIFFUSION
RINGS = np.linspace(0.006, 0.015, 10)
ONE_RING = np.full(10, 0.01)


def counts_of(seed, q, correlation=0.0, pixels_shared=False, lost_at=None):
    """Yield (frame, pixel) counts of each bin: g1 = exp(-D q² τ), of fields that go on from the bin before.

    correlation: of the fields of next neighbours. pixels_shared: half of the pixels are those of the bin
    before. lost_at: a frame before which half of the correlation of f with later ones is lost.
    """
    rng, frame = np.random.default_rng(seed), np.arange(FRAMES)
    shape, noise = (FRAMES, PIXELS * MODES), None
    for q_of_bin in q:
        new = (rng.normal(size=shape) + 1j * rng.normal(size=shape)) / np.sqrt(2)
        if noise is None:
            noise = new
        elif pixels_shared:
            half = shape[1] // 2
            noise = np.concatenate([noise[:, half:], new[:, :half]], axis=1)
        else:
            noise = correlation * noise + np.sqrt(1 - correlation**2) * new
        g = np.exp(-DIFFUSION * q_of_bin**2 * DT * np.abs(np.subtract.outer(frame, frame)))
        if lost_at is not None:
            before = frame < lost_at
            g = np.where(np.equal.outer(before, before), g, np.sqrt(0.5) * g)
        fields = np.linalg.cholesky(g + 1e-9 * np.eye(FRAMES)) @ noise
        intensity = (np.abs(fields) ** 2).reshape(FRAMES, PIXELS, MODES).mean(2)
        yield rng.poisson(COUNTS * intensity)


def stored(folder, q, *, seed=0, phi=np.nan, **speckle):
    c2 = []
    for counts in counts_of(seed, q, **speckle):
        mean = counts.mean(1)
        c2.append(counts @ counts.T / PIXELS / np.outer(mean, mean))
    path = folder / f"{seed}.zarr"
    hd.ingest(np.array(c2), path, q=q, phi=phi, dt=DT, overwrite=True)
    return path


def fitted(folder, q, *, weighting="pairs", **speckle):
    return hd.fit(stored(folder, q, **speckle), "brownian", weighting=weighting)


def axes_of(result):
    return [finding.numbers["axis"] for finding in result.findings.of("neighbours-share-speckle")]


@pytest.mark.parametrize("weighting", ["pairs", "speckle"])
@pytest.mark.parametrize(
    ("axis", "q", "phi", "speckle"),
    [
        ("rings", RINGS, np.nan, {"correlation": 0.9}),
        ("rings", RINGS[3:8], np.nan, {"correlation": 0.9}),
        ("sectors", ONE_RING, 17.0 * np.arange(10), {"pixels_shared": True}),
    ],
)
def test_neighbours_that_share_speckle_are_seen_and_errors_allow_for_it(
    tmp_path, axis, q, phi, speckle, weighting
):
    result = fitted(tmp_path, q, seed=2, phi=phi, weighting=weighting, **speckle)
    assert axes_of(result) == [axis]
    assert not result.misfit
    assert set(result.parameters.method.values[:1]) == {"speckle"}
    value, error = result.parameters["value"].values[0], result.parameters["stderr"].values[0]
    assert abs(value - TRUTH) < 4 * error


@pytest.mark.long
def test_pulls_of_rings_with_correlated_fields_have_their_size(tmp_path):
    """The errors from the scatter of bins were half of that of D0: pulls had a deviation of 2.25."""
    results = [fitted(tmp_path, RINGS, seed=seed, correlation=0.9) for seed in range(12)]
    pulls = [
        (r.parameters["value"].values[0] - TRUTH) / r.parameters["stderr"].values[0]
        for r in results
    ]
    assert 0.4 < np.sqrt(np.mean(np.square(pulls))) < 1.5
    assert sum(r.misfit for r in results) <= 1


@pytest.mark.long
@pytest.mark.parametrize("sectors", [1, 2])
def test_fits_of_rings_that_share_speckle_have_correlated_errors(tmp_path, sectors):
    """Of two sectors in each ring, each is correlated with that of the next ring, and not with the other."""
    rings, means = RINGS[2:8], []
    for correlation in (0.9, 0.0):
        of_sectors = [[*counts_of(n, rings, correlation)] for n in range(sectors)]
        counts = [of_sector[ring] for ring in range(6) for of_sector in of_sectors]
        c2 = np.array([n @ n.T / PIXELS / np.outer(n.mean(1), n.mean(1)) for n in counts])
        path, phi = tmp_path / f"{correlation}", np.tile([0.0, 90.0][:sectors], 6)
        hd.ingest(c2, path, q=np.repeat(rings, sectors), phi=phi, dt=DT)
        series = hd.fit_each(path, "brownian", over="q")
        assert series.correlations[:1] > (0.2,) if correlation else sum(series.correlations) < 0.3
        means.append(series.agreement["D0"])
    assert means[0].stderr > 1.2 * means[1].stderr


@pytest.mark.long
def test_means_over_rings_and_windows_allow_for_what_rings_share(tmp_path):
    """The rings of one window share speckle, those of two do not."""
    path, means = stored(tmp_path, RINGS[2:8], correlation=0.9), []
    for windows in (None, 2):
        series = hd.fit_each(path, "brownian", over="q", windows=windows)
        assert series.correlations[0] > 0.2
        independent = replace(series, correlations=()).agreement["D0"]
        means.append(series.agreement["D0"].stderr / independent.stderr)
    assert means == pytest.approx([1.5, 1.5], abs=0.3)
    by_window = [list(rings.powers_of_q.values()) for rings in series.over_q.values()]
    assert [len(laws) for laws in by_window] == [1, 1]


@pytest.mark.parametrize(
    ("size", "uncertainty", "likely"), [(0.24, 0.6, True), (0.24, 1.2, False), (0.0, 0.0, False)]
)
def test_errors_are_those_of_speckle_where_a_share_is_above_its_uncertainty(
    size, uncertainty, likely
):
    neighbours = {0: {1: size}, 1: {0: size}} if size else {}
    shared = SharedSpeckle(np.arange(2), neighbours, (), uncertainty)
    errors = SimpleNamespace(
        shared=shared, covariance=np.eye(1), dof=np.ones(1), scaling=None, objection=None
    )
    assert SpeckleErrors.of_theta.fget(errors).neighbours == likely


def test_workers_send_the_noise_of_bins_where_it_is_needed_alone(tmp_path):
    scan = hd.open_dataset(stored(tmp_path, RINGS[:1]))
    job = Job("a ring", lambda: scan, {}, tmp_path, written=False)
    for needed in (False, True):
        output = fit_on_worker(job._replace(with_noise=needed), hd.BROWNIAN)
        noise = output.events[-1].noise
        assert output.events[-1].result is output.result
        assert (noise is not None and list(noise()) == list(scan.bins)) == needed


@pytest.mark.long
@pytest.mark.parametrize("q", [RINGS, RINGS[:4], ONE_RING])
def test_independent_bins_share_nothing(tmp_path, q):
    phi = np.nan if len(np.unique(q)) > 1 else 17.0 * np.arange(len(q))
    shared = [axes_of(fitted(tmp_path, q, seed=seed, phi=phi)) for seed in range(3)]
    assert shared == [[], [], []]


@pytest.mark.long
@pytest.mark.parametrize("q", [0.4 * RINGS, 0.4 * RINGS[3:6]])
def test_a_loss_of_speckle_that_all_bins_have_is_a_misfit_and_not_shared(tmp_path, q):
    results = [fitted(tmp_path, q, seed=seed, lost_at=58) for seed in range(3)]
    assert sum(result.misfit for result in results) >= 2
    assert sum(len(axes_of(result)) for result in results) == 0


def test_what_is_shared_is_added_once_for_each_pair():
    rng, n = np.random.default_rng(0), 4
    shares = np.array([[1, 1, 0.5, 0], [1, 1, 0.5, 0.2], [0.5, 0.5, 1, 0.3], [0, 0.2, 0.3, 1]])
    neighbours = {b: {a: shares[a, b] for a in range(n) if 0 < shares[a, b] < 1} for b in range(n)}
    clusters, seen = np.array([0, 0, 1, 2]), Share("rings", 0.5, 0.001)
    shared = SharedSpeckle(clusters, neighbours, (seen,))
    maps = {b: rng.normal(size=(2, 3)) for b in range(n)}
    between = rng.normal(size=(3, 3))
    between += between.T

    def of_sums(a, b):
        return maps[a] @ between @ maps[b].T

    added = shared.added(maps, 2, of_sums).covariance
    expected = sum(
        shares[a, b] * maps[a] @ between @ maps[b].T for a in range(n) for b in range(n) if a != b
    )
    np.testing.assert_allclose(added, expected, rtol=1e-12)
    assert shared.counts(range(n)) == pytest.approx(dict(enumerate(shares.sum(1))))
    assert shared.mean_count(range(n)) == pytest.approx(n / (1 / shares.sum(1)).sum())
    not_seen = SharedSpeckle(clusters, neighbours)
    np.testing.assert_array_equal(not_seen.added(maps, 2, of_sums).covariance, added)
    assert not_seen.counts(range(n)) == {0: 2, 1: 2, 2: 1, 3: 1}


def test_a_loss_inside_an_interval_of_age_is_seen_in_one_bin(tmp_path, monkeypatch):
    """With 12 intervals of age, in none of six scans."""
    monkeypatch.setattr(sys.modules[__name__], "FRAMES", 120)
    q = np.array([0.004])
    results = [fitted(tmp_path, q, seed=seed, lost_at=70) for seed in range(3)]
    assert sum(result.misfit for result in results) >= 2


def test_what_shared_speckle_adds_to_a_weighted_fit_has_the_units_of_its_end(tmp_path, monkeypatch):
    counts = [*counts_of(0, [0.01]), *counts_of(1, [0.01])]
    c2 = np.array([n @ n.T / PIXELS / np.outer(n.mean(1), n.mean(1)) for n in counts])
    hd.ingest(c2, tmp_path / "s.zarr", q=0.01, phi=np.array([0.0, 180.0]), dt=DT)
    errors = []
    for updates in (1, 5):
        monkeypatch.setattr(speckle_weighting, "MOST_UPDATES", updates)
        result = hd.fit(tmp_path / "s.zarr", "brownian", weighting="speckle")
        errors.append(result.parameters["stderr"].values[0])
    np.testing.assert_allclose(*errors, rtol=0.12)


@one_blas_thread()
def shares_of(correlation, bins=8, seed=0, changes=(), directions=24):
    """Return the shares of bins whose values are normal, of unit variance, and all of them of speckle.

    correlation: (bin, bin). changes: of all values by a misfit that all bins have.
    """
    rng, size = np.random.default_rng(seed), (bins, directions)
    values = np.linalg.cholesky(correlation + 1e-9 * np.eye(bins)) @ rng.normal(size=size)
    cells = []
    for value in values + sum((rng.normal(0, 20) * change for change in changes), np.zeros(size)):
        noise = SimpleNamespace(
            contrast_ratio=1.0, cells=SimpleNamespace(intervals=list(range(directions))),
            inverse_pixels=1.0, of_cells=SimpleNamespace(constant=np.eye(directions)),
        )  # fmt: skip
        fitted = [np.ones(directions), *changes]
        named = {("smooth", n): change for n, change in enumerate(fitted)}
        sums = SpeckleOfSums.of(noise, np.eye(directions))
        cells.append(_SpeckleOfCells(sums, value, np.ones(directions), named))
    apart = np.abs(np.subtract.outer(np.arange(bins), np.arange(bins)))
    return _likely_shares([(list(range(bins)), apart)], cells.__getitem__), apart


def falling(size, power=1.0, bins=8):
    return size ** (np.abs(np.subtract.outer(np.arange(bins), np.arange(bins))) ** power)


def test_what_is_not_known_of_one_axis_says_nothing_of_the_other(monkeypatch):
    likely = {
        "rings": _LikelyShares(np.array([0.75, 0.3]), 0.04, 1e-9),
        "sectors": _LikelyShares(np.array([0.009, 0.0]), 1.32, 0.4),
    }
    monkeypatch.setattr(shared_speckle, "likely_shares", lambda *_: likely)
    scan = SimpleNamespace(
        q=np.array([1.0, 2.0]), phi=np.zeros(2), scan_number=np.ones(2, int), label=np.arange(2)
    )
    shared = shared_speckle.shared_speckle(scan, np.arange(2), {0: None, 1: None})
    assert shared.uncertainty == pytest.approx(0.04)
    assert shared.neighbours == {0: {1: 0.75}, 1: {0: 0.75}}


@pytest.mark.parametrize("power", POWERS[:2])
@pytest.mark.parametrize("size", [0.3, 0.6, 0.8])
def test_the_share_of_normal_values_is_found(size, power):
    shares = [shares_of(falling(size, power), seed=seed)[0] for seed in range(8)]
    first, second = np.mean([likely.sizes[:2] for likely in shares], axis=0)
    assert first == pytest.approx(size, abs=0.07)
    assert second == pytest.approx(size ** (2**power), abs=0.12)
    assert max(likely.p for likely in shares) < 1e-3
    assert np.std([likely.sizes[0] for likely in shares]) < 3 * size * shares[0].uncertainty + 0.02


def test_values_that_share_nothing_have_small_shares_and_no_small_p():
    shares = [shares_of(np.eye(8), seed=seed)[0] for seed in range(40)]
    assert np.mean([likely.sizes[0] for likely in shares]) < 0.03
    assert np.mean([likely.p < 0.05 for likely in shares]) < 0.1


def test_shares_of_few_values_are_right_on_average():
    """Half of them are 0, the others anything up to 0.9. With few small ones expected, the mean was 0.16."""
    sizes = np.where(np.arange(60) % 2, 0.9 * np.arange(60) / 60, 0.0)
    shares = [
        shares_of(np.maximum(falling(size, bins=4), np.eye(4)), 4, seed, directions=6)[0].sizes[0]
        for seed, size in enumerate(sizes)
    ]
    assert np.mean(shares) == pytest.approx(sizes.mean(), abs=0.03)


def test_values_that_are_all_alike_are_no_speckle():
    shares, _ = shares_of(0.4 * np.eye(8) + 0.6 * np.ones((8, 8)))
    assert (shares.sizes == 0).all()
    assert shares.p == 1


def test_a_misfit_of_all_bins_does_not_change_what_else_they_share():
    change = np.sin(np.arange(24.0))
    with_misfit, _ = shares_of(falling(0.6), changes=[change])
    assert with_misfit.sizes[0] == pytest.approx(0.6, abs=0.15)
    independent, _ = shares_of(np.eye(8), changes=[change])
    assert independent.p > 0.01


def test_shares_are_some_that_speckle_can_have():
    """No sum of bins with some weights has a negative variance."""
    for size in (0.3, 0.97):
        likely, apart = shares_of(falling(size, 2.0, bins=12), bins=12)
        matrix = np.append(1.0, likely.sizes)[np.minimum(apart, MOST_DISTANCE)]
        assert np.linalg.eigvalsh(matrix).min() > -1e-3


def test_two_bins_with_little_in_them_share_next_to_nothing():
    likely, _ = shares_of(np.eye(2), bins=2, directions=6)
    assert likely.sizes[0] < 0.15
    assert likely.p > 0.01


@pytest.mark.long
def test_short_records_are_looked_at_too(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "FRAMES", 50)
    results = [fitted(tmp_path, RINGS, seed=seed, correlation=0.95) for seed in range(4)]
    assert sum(axes_of(result) == ["rings"] for result in results) >= 2


@pytest.mark.parametrize(
    "of_other", [range(8), range(3, 9), [7, 2, 4]], ids=["same", "some", "few"]
)
def test_cells_of_two_bins_that_see_one_speckle_have_the_mean_of_both_correlations(of_other):
    rng = np.random.default_rng(0)

    def sums(cells, pixels):
        n = len(cells)
        to = rng.normal(size=(n, 2 * n))
        noise = SimpleNamespace(
            cells=SimpleNamespace(intervals=list(cells)), inverse_pixels=1 / pixels,
            of_cells=SimpleNamespace(constant=to @ to.T),
        )  # fmt: skip
        return SpeckleOfSums.of(noise, weights := rng.normal(size=(3, n))), weights

    (first, weights), (second, others) = sums(range(8), 50.0), sums(of_other, 200.0)
    (of_first, size), (of_second, size_of_second) = (
        correlation_and_deviation(of_bin.noise.of_cells.constant) for of_bin in (first, second)
    )
    shared = np.zeros((8, len(of_other)))
    for n, cell in enumerate(of_other):
        for m in range(8):
            if cell < 8:
                shared[m, n] = of_first[m, cell]
            if cell < 8 and m in of_other:
                shared[m, n] = (of_first[m, cell] + of_second[list(of_other).index(m), n]) / 2
    expected = weights @ (shared * np.outer(size, size_of_second)) @ others.T / 100
    np.testing.assert_allclose(first.covariance_with(second), expected, rtol=1e-12)
    own = weights @ first.noise.of_cells.constant @ weights.T / 50
    np.testing.assert_allclose(first.covariance_with(first), own, rtol=1e-12)


def test_derivatives_of_other_sign_have_covariances_of_other_sign():
    def noise(slopes, pixels=100.0):
        cells = SimpleNamespace(
            intervals=[0, 1, 2], pairs=np.array([3, 2, 1]), slopes=np.array([slopes, [1, 2, 3]])
        )
        fields = np.diag([1.0, 1.0, 4.0, 1.0]) + 0.1
        return SimpleNamespace(
            cells=cells, inverse_pixels=1 / pixels, of_cells=object(),
            speckle_of_fields=correlation_and_deviation(fields),
        )  # fmt: skip

    first = noise(np.array([1.0, -1.0, 2.0]))
    alike = shared_fields(first, noise(np.array([2.0, -2.0, 4.0])))
    turned = shared_fields(first, noise(np.array([-2.0, 2.0, -4.0])))
    np.testing.assert_allclose(alike, (np.diag([1.0, 1.0, 4.0, 1.0]) + 0.1) / 100, rtol=1e-12)
    with_fewer_pixels = shared_fields(first, noise(np.array([1.0, -1.0, 2.0]), pixels=64.0))
    np.testing.assert_allclose(with_fewer_pixels, alike / 0.8, rtol=1e-12)
    np.testing.assert_allclose(turned[2, 2], -alike[2, 2], rtol=1e-12)
    np.testing.assert_allclose(turned[[0, 1, 3]][:, [0, 1, 3]], alike[[0, 1, 3]][:, [0, 1, 3]])


def places(q, phi, clusters=None, scans=None, used=None):
    numbers = np.ones(len(q), int) if scans is None else np.array(scans)
    label = np.arange(1, len(q) + 1)
    scan = SimpleNamespace(q=np.array(q), phi=np.array(phi), scan_number=numbers, label=label)
    clusters = np.arange(len(q)) if clusters is None else np.array(clusters)
    return _Places.of(scan, clusters, range(len(q)) if used is None else used)


def pairs(of_places, axis, distance):
    """Return the pairs of bins of rows at a distance."""
    return sorted(
        tuple(sorted((bins[a], bins[b])))
        for bins, apart in of_places.rows(axis)
        for a, b in np.argwhere(np.triu(apart == distance)).tolist()
    )


def test_the_last_sector_of_a_full_turn_is_a_neighbour_of_the_first():
    around = places([0.01] * 6, 60.0 * np.arange(6))
    assert pairs(around, "sectors", 1) == [(0, 1), (0, 5), (1, 2), (2, 3), (3, 4), (4, 5)]
    assert pairs(around, "sectors", 3) == [(0, 3), (1, 4), (2, 5)]
    sectors = places([0.01] * 6, 20.0 * np.arange(6))
    assert pairs(sectors, "sectors", 1) == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]


@pytest.mark.parametrize("origin", [0.0, 330.0, 90.0])
def test_sectors_of_a_part_of_a_turn_have_the_neighbours_that_they_have_from_any_origin(origin):
    part = places([0.01] * 6, np.mod(15.0 * np.arange(6) + origin, 360))
    assert part.around == 0
    assert pairs(part, "sectors", 1) == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
    assert part.pairs_apart(0, 1) == pairs(part, "sectors", 1)


def test_bins_at_unknown_angles_are_neighbours_in_their_order():
    unknown = places([0.01, 0.01, 0.02, 0.02], [np.nan] * 4)
    assert pairs(unknown, "rings", 1) == [(0, 2), (1, 3)]
    assert unknown.pairs_apart(1, 0) == [(0, 2), (1, 3)]
    beside = places([0.01, 0.02] + [0.03] * 6, [np.nan, np.nan, *60.0 * np.arange(6)])
    assert beside.pairs_apart(1, 0) == [(0, 1)]


def test_opposite_sectors_have_the_same_neighbours():
    opposite = places([0.01] * 4, [0.0, 90.0, 180.0, 270.0], clusters=[0, 1, 0, 1])
    assert opposite.pairs_apart(0, 1) == [(0, 1), (0, 3), (1, 2), (2, 3)]
    assert pairs(opposite, "sectors", 1) == [
        (0, 1)
    ]  # of two patterns: more pairs tell nothing more


def test_angles_that_are_means_of_pixels_differ_a_little_from_ring_to_ring():
    rng, phi = np.random.default_rng(0), np.tile(20.0 * np.arange(18), 2)
    exact = places(np.repeat([0.01, 0.02], 18), phi)
    near = places(np.repeat([0.01, 0.02], 18), phi + rng.normal(0, 0.1, 36))
    for axis in ("rings", "sectors"):
        assert pairs(near, axis, 1) == pairs(exact, axis, 1)


@pytest.mark.parametrize("weighting", ["pairs", "speckle"])
def test_two_bins_of_one_speckle_tell_as_much_as_one_of_them(tmp_path, weighting):
    """The same counts twice, 180° apart; σ of the second is twice as large: its weight is a sixteenth."""
    (counts,) = counts_of(0, [0.01])
    mean = counts.mean(1)
    c2 = np.array([counts @ counts.T / PIXELS / np.outer(mean, mean)] * 2)
    results = []
    for name, sigma in (("one", [0.02]), ("first", [0.02, 0.04]), ("second", [0.04, 0.02])):
        bins = len(sigma)
        path, phi = tmp_path / name, np.array([0.0, 180.0])[:bins]
        hd.ingest(c2[:bins], path, q=0.01, phi=phi, dt=DT, sigma=np.array(sigma))
        results.append(hd.fit(path, "brownian", weighting=weighting).parameters)
    of_one, *twice = results
    for parameters in twice:
        for name in ("value", "stderr", "dof"):
            # opposite sectors would count other photons: this part of the noise is taken for independent
            np.testing.assert_allclose(parameters[name][0], of_one[name][0], rtol=0.12)


def test_rings_are_neighbours_at_one_angle_and_whole_rings_by_q():
    grid = places([0.01, 0.01, 0.02, 0.02], [0.0, 30.0, 0.0, 30.0])
    assert pairs(grid, "rings", 1) == [(0, 2), (1, 3)]
    assert grid.pairs_apart(1, 1) == [(0, 3)]
    whole = places([0.03, 0.01, 0.02], [np.nan] * 3)
    assert pairs(whole, "rings", 1) == [(0, 2), (1, 2)]
    assert pairs(whole, "sectors", 1) == []


def test_a_ring_whose_noise_is_not_known_keeps_its_place():
    rings = places([0.01, 0.02, 0.03, 0.04], [np.nan] * 4, used=[0, 2, 3])
    assert pairs(rings, "rings", 1) == [(2, 3)]
    assert pairs(rings, "rings", 2) == [(0, 2)]


def test_bins_of_unknown_place_are_neighbours_in_their_order():
    unknown = places([np.nan] * 3, [np.nan] * 3)
    assert pairs(unknown, "rings", 1) == [(0, 1), (1, 2)]


def test_bins_of_different_scans_are_no_neighbours():
    phi = [0.0, 30.0, 60.0, 0.01, 30.01, 60.01]
    repeats = places([0.01] * 6, phi, scans=[1, 1, 1, 2, 2, 2])
    assert pairs(repeats, "sectors", 1) == [(0, 1), (1, 2), (3, 4), (4, 5)]
