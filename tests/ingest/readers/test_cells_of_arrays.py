"""Means of c2 over cells of age and lag, of any correlator, in archives of NumPy. Truth: loops over pairs."""

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import SourceError

N, DT, Q = 60, 0.1, 0.01
TIME = DT * np.arange(N)
D0, ALPHA = 8e3, -0.4
AGE_EDGES = np.concatenate([np.arange(0, 2, 0.35), np.geomspace(2.2, 6.0, 9)])
LAG_EDGES = np.concatenate([DT * (np.arange(1, 9) - 0.5), DT * np.array([12.2, 18.0, 27.3, 41.0])])
"""Linear up to 8 frames, then logarithmic."""


def matrix(D0=D0, alpha=ALPHA):
    rate = D0 * np.maximum(TIME, DT / 2) ** alpha
    C = np.concatenate([[0.0], np.cumsum(0.5 * (rate[1:] + rate[:-1]) * DT)])
    return 1 + 0.25 * np.exp(-(Q**2) * np.abs(C[:, None] - C))


def averaged(c2, age_edges, lag_edges):
    """The mean over each cell, pair by pair; a pair at an edge is in the cell after it, if there is one."""
    age_edges, lag_edges = (np.append(e[:-1], e[-1] + 1e-6) for e in (age_edges, lag_edges))
    total, count = np.zeros((2, len(age_edges) - 1, len(lag_edges) - 1))
    for i in range(len(c2)):
        for j in range(i, len(c2)):
            a = np.searchsorted(age_edges, 0.5 * (i + j) * DT + 1e-9) - 1
            b = np.searchsorted(lag_edges, (j - i) * DT + 1e-9) - 1
            if 0 <= a < len(total) and 0 <= b < total.shape[1]:
                total[a, b] += c2[i, j]
                count[a, b] += 1
    with np.errstate(invalid="ignore"):
        return total / count


def archive(folder, *, name="cells.npz", **arrays):
    hybrid = {
        "age_edges": AGE_EDGES,
        "lag_edges": LAG_EDGES,
        "q": [Q],
        "phi": [0.0],
        "dt": DT,
        "frames": N,
    }
    if "c2" not in arrays:
        arrays["c2"] = averaged(matrix(), AGE_EDGES, LAG_EDGES)
    given = hybrid | arrays
    np.savez(folder / name, **{key: value for key, value in given.items() if value is not None})
    return folder / name


def test_a_fit_to_means_over_cells_of_any_edges_finds_what_made_them(tmp_path):
    report = hd.ingest(archive(tmp_path, sigma=[0.01]))
    assert report.source_format == "cells"
    assert any("averaged over" in note for note in report.notes)
    found = hd.fit(report.store, "power_law")
    assert found.params["D0"].value == pytest.approx(D0, rel=1e-3)
    assert found.params["alpha"].value == pytest.approx(ALPHA, rel=1e-3)
    assert found.scaling["contrast"].values == pytest.approx([0.25], rel=1e-3)
    assert found.chisqr < 1e-3


def test_every_pair_has_the_mean_of_its_cell_and_pairs_between_cells_are_unknown(tmp_path):
    means = averaged(matrix(), AGE_EDGES, LAG_EDGES)
    c2 = hd.open_dataset(hd.ingest(archive(tmp_path, sigma=[0.01])).store).dataset["c2"].values[0]
    for i, j in ((0, 3), (20, 25), (5, 30), (10, 59)):
        a = np.searchsorted(AGE_EDGES, 0.5 * (i + j) * DT + 1e-9) - 1
        b = np.searchsorted(LAG_EDGES, (j - i) * DT + 1e-9) - 1
        known = 0 <= b < len(LAG_EDGES) - 1
        assert c2[i, j] == pytest.approx(means[a, b], abs=1e-6) if known else np.isnan(c2[i, j])
    assert np.isnan(c2[0, 45])


def test_single_lags_with_gaps_between_them_are_pairs_of_their_own(tmp_path):
    lags, c2 = np.array([1, 2, 3, 6, 12, 24, 48]), matrix()
    ages = np.arange(2 * N - 1)
    means = np.full((len(ages), len(lags)), np.nan)
    for n, lag in enumerate(lags):
        first = np.arange(N - lag)
        means[2 * first + lag, n] = c2[first, first + lag]
    names = {"age_edges": None, "lag_edges": None, "age": ages * DT / 2, "lag": lags * DT}
    report = hd.ingest(archive(tmp_path, c2=means, sigma=[0.01], **names))
    stored = hd.open_dataset(report.store).dataset["c2"].values[0]
    known = np.isfinite(stored)
    assert {int(lag) for lag in np.subtract(*np.nonzero(known)[::-1])} == set(lags.tolist())
    np.testing.assert_allclose(stored[known], c2[known], atol=1e-6)
    assert hd.fit(report.store, "power_law").params["D0"].value == pytest.approx(D0, rel=1e-4)


def test_without_sigma_the_scatter_between_ages_is_the_noise_of_a_pair(tmp_path):
    noisy = matrix(alpha=0.0) + 0.02 * np.random.default_rng(1).standard_normal((N, N))
    edges = DT * (np.arange(0, N) - 0.25), DT * (np.arange(1, 30) - 0.5)
    path = archive(tmp_path, c2=averaged(noisy, *edges), age_edges=edges[0], lag_edges=edges[1])
    sigma = np.median(hd.open_dataset(hd.ingest(path).store).sigma_row) ** 2
    assert sigma == pytest.approx(0.02, rel=0.2)


def test_two_bins_times_between_frames_and_options_are_taken(tmp_path):
    both = np.stack([averaged(matrix(D0=d), AGE_EDGES, LAG_EDGES) for d in (D0, 2 * D0)])
    both += 1e-3 * np.random.default_rng(2).standard_normal(both.shape)
    path = archive(tmp_path, c2=both, q=None, phi=None, dt=None)
    report = hd.ingest(path, q=[0.01, 0.0141421356], phi=float("nan"), dt=DT, sigma=0.01)
    scan = hd.open_dataset(report.store)
    assert scan.q.tolist() == [0.01, 0.0141421356]
    assert hd.fit(scan.select(q=0.01), "power_law").params["D0"].value == pytest.approx(
        D0, rel=0.03
    )


WRONG = {
    "centres of averages": ({"lag_edges": None, "lag": LAG_EDGES[:-1] * 1.07}, "give lag_edges"),
    "no time of a frame": ({"dt": None}, "give dt"),
    "other axes": ({"c2": np.ones((3, 4))}, "must be \\(bin, age, lag\\)"),
    "edges that fall": ({"age_edges": AGE_EDGES[::-1]}, "increasing"),
    "edges that are NaN": ({"lag_edges": np.append(LAG_EDGES[:-1], np.nan)}, "increasing"),
    "a frame time of µs": ({"dt": 1e-6}, "no pair of 60 frames"),
    "too many frames": ({"frames": 10_000_000}, "may have 3 to"),
    "edges and no number of frames": ({"frames": None}, "add frames=N"),
    "more ages than frames": ({"frames": 40}, "without a pair of its 40 frames"),
    "one edge": ({"age_edges": [1.0]}, "two or more"),
}


@pytest.mark.parametrize("word", WRONG)
def test_what_is_wrong_with_cells_is_named(tmp_path, word):
    arrays, said = WRONG[word]
    with pytest.raises(SourceError, match=said):
        hd.ingest(archive(tmp_path, sigma=[0.01], **arrays))


def test_levels_of_multi_tau_are_scans_that_are_fitted_together(tmp_path):
    """Each level has frames twice as long as the one before, and lags from the middle of its channels on."""
    t, scans = 0.05 * np.arange(256), []
    c2 = 1 + 0.25 * np.exp(-(Q**2) * D0 * np.abs(t[:, None] - t))
    for level in range(3):
        n = len(c2) >> level
        of_level = c2.reshape(n, 1 << level, n, 1 << level).mean((1, 3))
        lag = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
        of_level[(lag >= 16) | (lag < 8 * (level > 0))] = np.nan
        store = tmp_path / f"level{level}.zarr"
        hd.ingest(of_level, store, q=Q, phi=0.0, dt=0.05 * 2**level, sigma=0.01)
        scans.append(hd.open_dataset(store))
    found = hd.fit(scans, "brownian").global_fit
    assert found is not None
    value = found.parameters["value"].sel(param="D0")
    assert float(value) == pytest.approx(D0, rel=5e-3)
