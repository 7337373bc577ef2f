"""Results of ESRF's correlators: averages over cells of age and lag."""

import h5py
import numpy as np
import pytest

import homodyne_dask as hd
import ingest
from homodyne_dask.errors import OptionError, SourceError
from ingest.readers.esrf import open_esrf
from ingest.readers.source import checked_options
from tests import reference
from tests.ingest_files import DT, arrays, attributes, noisy, upper

N = 30
BINS = [noisy(N, k) for k in range(3)]


def averaged(c2: np.ndarray, ages: int, decade: int, lags: int):
    """Average full matrices over cells of age and lag as their correlator does; times in frames."""
    n = c2.shape[-1]
    t2, t1 = np.indices((n, n))
    lag, age = t2 - t1, (t1 + t2) / 2
    age_edges = np.linspace(0, n - 1, ages + 1)
    lag_edges = np.concatenate(
        [np.arange(10**decade) - 0.5, np.logspace(decade, np.log10(n - 1), lags)]
    )
    lag_edges[-1] = n - 1
    use = lag >= 0
    cells = (age[use], lag[use])
    count = np.histogram2d(*cells, bins=(age_edges, lag_edges))[0]
    with np.errstate(invalid="ignore"):
        ttcf = np.stack(
            [
                np.histogram2d(*cells, bins=(age_edges, lag_edges), weights=one[use])[0] / count
                for one in c2
            ]
        )
    split = np.searchsorted(lag_edges, 10**decade)
    middle = 0.5 * (lag_edges[1:] + lag_edges[:-1])
    root = np.sqrt(np.maximum(lag_edges[1:] * lag_edges[:-1], 0))
    lags_ = np.where(np.arange(len(middle)) < split, middle, root)
    return ttcf, 0.5 * (age_edges[1:] + age_edges[:-1]), lags_, count


def esrf(path, ttcf, age, lag, q=(0.05, 0.1), analysis="full", old=False):
    """Write the layout that XPCSUtilities reads, its second version or the one before."""
    base = "entry_0000/dynamix/correlations/directions" if old else "entry_0000/correlations"
    where = f"{base}/{analysis}/{'2times_correlation' if old else 'twotime'}"
    with h5py.File(path, "a") as file:
        file.attrs["MagicString"] = "XPCSResultFile_v2.0"
        file[f"{where}/ttcf"] = ttcf
        file[f"{where}/age"] = age
        file[f"{where}/{'timeshift' if old else 'lag'}"] = lag
        if not old:
            file[f"{base}/{analysis}/parameters/q"] = list(q)
            file[f"{base}/{analysis}/roi_masks"] = np.ones((2, 5, 7), dtype=bool)
    return path


def test_unbinned_ages_and_lags_give_every_pair_back(tmp_path):
    n = 24
    age, lag = DT * 0.5 * np.arange(2 * n - 1), DT * np.arange(n)
    ttcf = np.full((2, len(age), n), np.nan)
    full = np.stack([noisy(n, 0), noisy(n, 1)])
    for i in range(n):
        for j in range(i, n):
            ttcf[:, i + j, j - i] = full[:, i, j]
    report = ingest.ingest(esrf(tmp_path / "A.h5", ttcf, age, lag), phi=0, sigma=0.02)
    np.testing.assert_array_equal(arrays(report.store)["c2"], upper(full))
    assert [row.q for row in report.bins] == pytest.approx([0.005, 0.01])
    assert [row.pixels for row in report.bins] == [35, 35]
    assert attributes(report.store)["source_format"] == "esrf"
    assert any("taken as 1/nm" in note for note in report.notes)
    assert not any("biases" in note for note in report.notes)


def test_a_cell_of_0_is_a_measurement_unless_its_whole_age_or_lag_is_0(tmp_path):
    n = 24
    age, lag = DT * 0.5 * np.arange(2 * n - 1), DT * np.arange(n)
    full = np.stack([noisy(n, 0), noisy(n, 1)])
    full[:, 3, 8] = 0
    ttcf = np.full((2, len(age), n), np.nan)
    for i in range(n):
        for j in range(i, n):
            ttcf[:, i + j, j - i] = full[:, i, j]
    ttcf[:, 20], ttcf[:, :, 6] = 0, 0  # ages and lags that the correlator has not reached
    found = arrays(ingest.ingest(esrf(tmp_path / "A.h5", ttcf, age, lag), phi=0, sigma=1).store)[
        "c2"
    ]
    i, j = np.indices((n, n))
    expected = np.where((i + j == 20) | (j - i == 6), np.nan, full)
    np.testing.assert_array_equal(found, upper(expected))
    assert (found[:, 3, 8] == 0).all()


@pytest.mark.parametrize("old", [False, True])
def test_every_pair_takes_the_average_of_its_cell_and_cells_weigh_as_many_pairs(tmp_path, old):
    n = 150
    full = np.stack([noisy(n, 0), noisy(n, 1)])
    ttcf, age, lag, count = averaged(full, ages=12, decade=1, lags=8)
    options = {"q": [0.005, 0.01]} if old else {}
    path = esrf(tmp_path / "A.h5", ttcf, DT * age, DT * lag, old=old)
    report = ingest.ingest(path, phi=[0, 90], **options)
    held = arrays(report.store)
    assert held["time"] == pytest.approx(DT * np.arange(n))
    c2 = held["c2"][1]
    values, pairs = np.unique(c2[np.isfinite(c2)], return_counts=True)
    # a lag at the very edge of two cells of the logarithmic part may be taken for either
    expected = {np.float32(v): c for v, c in zip(ttcf[1].ravel(), count.ravel(), strict=True)}
    near = [abs(expected[v] - p) <= 0.1 * p + 13 for v, p in zip(values, pairs, strict=True)]
    assert all(near)
    assert pairs.sum() == n * (n - 1) // 2
    assert report.sigma_source == "constant"
    assert [row.sigma for row in report.bins] == pytest.approx([0.02, 0.02], rel=0.35)
    assert any("cells of age and lag" in note for note in report.notes)


def test_a_fit_of_cells_finds_what_a_fit_of_pairs_finds(tmp_path):
    n, theta = 200, np.array([3000.0, -0.2, 50.0])
    time, phi = DT * np.arange(n), [0.0, 45.0]
    rng = np.random.default_rng(3)
    full = []
    for q in (0.01, 0.014):
        f = reference.CONVENTIONS["physical"](theta, time, q, 0.0, 2e6)
        c2 = np.triu(1.0 + 0.3 * f + 0.03 * rng.standard_normal((n, n)), 1)
        full.append(c2 + c2.T + np.diag(np.full(n, 2.0)))
    full = np.stack(full)
    np.savez(tmp_path / "P.npz", c2=full, q=[0.01, 0.014], phi=phi, dt=DT)
    pairs = ingest.ingest(tmp_path / "P.npz", sigma=0.03)
    ttcf, age, lag, _ = averaged(full, ages=60, decade=1, lags=40)
    cells = ingest.ingest(
        esrf(tmp_path / "C.h5", ttcf, DT * age, DT * lag, q=(0.1, 0.14)), phi=phi, sigma=0.03
    )
    fixed = {"D_offset": 50.0}
    one, other = (hd.fit(made.store, hd.STATIC, fixed=fixed) for made in (pairs, cells))
    assert one.converged
    assert other.converged
    away = (other.parameters.value - one.parameters.value).values[:2]
    assert (np.abs(away) < 1.0 * one.parameters.stderr_naive.values[:2]).all()


@pytest.mark.parametrize("name", ["age", "lag"])
def test_ages_and_lags_in_another_unit_than_seconds_are_refused(tmp_path, name):
    path = esrf(tmp_path / "A.h5", np.ones((2, 6, 5)), np.arange(6.0), np.arange(5.0))
    with h5py.File(path, "r+") as file:
        file[f"entry_0000/correlations/full/twotime/{name}"].attrs["units"] = "ms"
    with pytest.raises(SourceError, match=f"{name} of A.h5 is in 'ms', not in seconds"):
        open_esrf(path, checked_options(None, 0, None, None, 0.0, None))


def exact_cells(tmp_path, theta, ages, decade, lags):
    """A store of exact means of 300 frames over cells."""
    n = 300
    time, full = DT * np.arange(n), []
    for q in (0.01, 0.014):
        with np.errstate(over="ignore"):
            f = np.triu(reference.CONVENTIONS["physical"](theta, time, q, 0.0, 2e6), 1)
        full.append(1.0 + 0.3 * (f + f.T))
    ttcf, age, lag, _ = averaged(np.stack(full), ages, decade, lags)
    path = esrf(tmp_path / "C.h5", ttcf, DT * age, DT * lag, q=(0.1, 0.14))
    return ingest.ingest(path, tmp_path / "C.zarr", phi=0, sigma=0.03).store


def test_a_fit_of_cells_warns_of_their_bias(tmp_path):
    theta, fixed = np.array([3000.0, -0.2, 0.0]), {"D_offset": 0.0}
    result = hd.fit(exact_cells(tmp_path, theta, 30, 1, 10), hd.STATIC, fixed=fixed)
    assert result.converged
    [line] = [line for line in result.warnings if "cells of age and lag" in line]
    assert (
        "With 30 ages and lags that grow by 1.5 from cell to cell expect up to 1.5 % in D0" in line
    )
    D0, alpha = result.parameters["value"].values[:2]
    assert 0.003 < abs(D0 / 3000 - 1) < 0.01
    assert 0.001 < abs(alpha + 0.2) < 0.005


@pytest.mark.slow
@pytest.mark.parametrize(("cells", "of_D0", "of_alpha"), [
    ((300, 1, 80), 1e-3, 1e-3), ((60, 1, 40), 2.5e-3, 1e-3), ((30, 1, 10), 1.5e-2, 5e-3),
    ((12, 0, 8), 0.4, np.inf),
])  # fmt: skip
@pytest.mark.parametrize("D0", [40000.0, 3000.0])
def test_the_bias_is_no_larger_than_the_warning_says(tmp_path, cells, of_D0, of_alpha, D0):
    store = exact_cells(tmp_path, np.array([D0, -0.2, 0.0]), *cells)
    value = hd.fit(store, hd.STATIC, fixed={"D_offset": 0.0}).parameters["value"].values
    assert abs(value[0] / D0 - 1) < of_D0
    assert abs(value[1] + 0.2) < of_alpha


ESRF_MISTAKES = {
    "shape": ({"age": np.arange(4.0)}, "has shape .* it must be"),
    "order": ({"age": -np.arange(6.0)}, "age of .* must be two or more increasing"),
    "long": ({"age": 1e5 * np.arange(6.0)}, "the most is 20000 frames"),
    "q": ({"q": [0.1]}, "has 1 entries for 2 regions"),
}


@pytest.mark.parametrize("word", ESRF_MISTAKES)
def test_what_is_wrong_with_cells_is_named(tmp_path, word):
    changes, message = ESRF_MISTAKES[word]
    held = {"ttcf": np.ones((2, 6, 5)), "age": np.arange(6.0), "lag": np.arange(5.0)}
    with pytest.raises(SourceError, match=message):
        ingest.ingest(esrf(tmp_path / "A.h5", **(held | changes)), phi=0)


def test_a_file_of_cells_needs_the_angle_and_says_which_analysis_was_read(tmp_path):
    held = {"age": np.arange(20.0), "lag": np.arange(5.0)}
    ttcf = 1 + 0.01 * np.random.default_rng(0).standard_normal((2, 20, 5))
    path = esrf(tmp_path / "A.h5", ttcf, **held)
    esrf(path, ttcf, **held, analysis="sectors")
    with pytest.raises(OptionError, match="give --phi"):
        ingest.ingest(path)
    report = ingest.ingest(path, phi=0)
    assert any("analysis full was read; the file has sectors too" in n for n in report.notes)
    flat = esrf(tmp_path / "B.h5", np.ones((2, 20, 5)), **held)
    with pytest.raises(SourceError, match="give --sigma"):
        ingest.ingest(flat, phi=0)
