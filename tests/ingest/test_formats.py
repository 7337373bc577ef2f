"""Files of homodyne's cache, of NXxpcs and of ESRF's correlators, in their layouts."""

import json

import h5py
import numpy as np
import pytest

import homodyne_dask as hd
import ingest
from homodyne_dask.errors import HomodyneDaskError, OptionError, SourceError
from tests import reference
from tests.ingest_files import DT, Q, arrays, attributes, noisy

N = 30
BINS = [noisy(N, k) for k in range(3)]
PHI = [-60.0, 0.0, 60.0]


def upper(c2: np.ndarray) -> np.ndarray:
    """What the store holds of full matrices."""
    return np.where(np.tri(c2.shape[-1], dtype=bool), np.nan, c2).astype(np.float32)


# homodyne's cache

TIME = np.linspace(0, DT * (N - 1), N)
CACHE = {
    "c2_exp": np.stack(BINS).astype(np.float64),
    "wavevector_q_list": np.full(3, Q),
    "phi_angles_list": np.array(PHI),
    "t1": TIME,
    "t2": TIME,
}


def cache(path, **changes):
    held = {**CACHE, **changes}
    np.savez_compressed(path, **{k: v for k, v in held.items() if v is not None})
    return path


def test_homodynes_cache_is_read_as_it_is(tmp_path):
    about = {"start_frame": 11, "end_frame": 40, "cache_version": "2.0"}
    report = ingest.ingest(
        cache(tmp_path / "cached_c2.npz", cache_metadata_json=np.asarray(json.dumps(about)))
    )
    held, attrs = arrays(report.store), attributes(report.store)
    np.testing.assert_array_equal(held["c2"], upper(np.stack(BINS)))
    assert [row.q for row in report.bins] == [Q] * 3
    assert [row.phi for row in report.bins] == PHI
    np.testing.assert_allclose(held["time"], TIME, atol=1e-12)
    assert attrs["source_format"] == "homodyne"
    assert (attrs["begin_frame"], attrs["end_frame"]) == (11, 40)
    assert any("times count from frame 11" in note for note in report.notes)


def test_an_older_cache_holds_its_times_as_planes_and_one_q(tmp_path):
    t1, t2 = np.meshgrid(TIME, TIME, indexing="ij")
    one = np.array([Q])
    for planes in ({"t1": t1, "t2": t2}, {"t1": t2, "t2": t1}):
        path = cache(tmp_path / "A.npz", wavevector_q_list=one, **planes)
        report = ingest.ingest(path, overwrite=True)
        assert report.frame_time == pytest.approx(DT)
        assert [row.q for row in report.bins] == [Q] * 3


CACHE_MISTAKES = {
    "no angles": ({"phi_angles_list": None}, "has c2_exp but no phi_angles_list"),
    "angles": ({"phi_angles_list": np.zeros(2)}, "phi of A.npz has 2 values for 3 bins"),
    "times": ({"t2": TIME + 1}, "are not the same times"),
    "length": ({"t1": TIME[:-1], "t2": TIME[:-1]}, "29 entries for 30 frames"),
    "objects": ({"c2_exp": np.array([None])}, "c2_exp of A.npz holds object"),
    "shape": ({"c2_exp": np.zeros((2, 3, 4))}, r"c2_exp of A.npz has shape \(2, 3, 4\)"),
    "metadata": ({"cache_metadata_json": np.asarray("{")}, "cannot be read as NumPy arrays"),
}


@pytest.mark.parametrize("word", CACHE_MISTAKES)
def test_a_damaged_cache_is_named(tmp_path, word):
    changes, message = CACHE_MISTAKES[word]
    with pytest.raises(HomodyneDaskError, match=message):
        ingest.ingest(cache(tmp_path / "A.npz", **changes))


# NXxpcs

STORAGE = {
    "storage_mode": "one_array_q_first",
    "baseline_reference": 1,
    "time_origin_location": "upper_left",
    "populated_elements": "all",
}
ARRAY = "entry/twotime/two_time_corr_func"


def nexus(path, matrices, detector="detector_1", masks=True, **storage):
    """Write the layout of the NeXus definition."""
    held = {**STORAGE, **storage}
    with h5py.File(path, "w") as file:
        file["entry/definition"] = "NXxpcs"
        if held["storage_mode"] == "data_exchange_keys":
            for key, matrix in matrices.items():
                file[f"{ARRAY}/{key}"] = matrix
        else:
            file[ARRAY] = matrices
        file[ARRAY].attrs.update({k: v for k, v in held.items() if v is not None})
        file[f"entry/instrument/{detector}/frame_time"] = DT
        file[f"entry/instrument/{detector}/count_time"] = 0.9 * DT
        if masks:
            file["entry/instrument/masks/dynamic_roi_map"] = np.repeat(np.arange(4), 25)
            file["entry/instrument/masks/dynamic_q_list"] = [Q, Q, 2 * Q]
            file["entry/instrument/masks/dynamic_q_list"].attrs["units"] = "1/Å"
            file["entry/instrument/masks/dynamic_phi_list"] = PHI
            file["entry/instrument/masks/dynamic_phi_list"].attrs["units"] = "1/Å"
    return path


FULL = np.stack(BINS)
STORED = {
    "q first": ({}, FULL),
    "q last": ({"storage_mode": "one_array_q_last"}, np.moveaxis(FULL, 0, -1)),
    "keys": (
        {"storage_mode": "data_exchange_keys"},
        {f"roi_{n + 1:04d}": FULL[n] for n in range(3)},
    ),
    "upper": ({"populated_elements": "upper_half"}, np.triu(FULL)),
    "lower": ({"populated_elements": "lower_half"}, np.tril(FULL)),
    "filling": ({"populated_elements": "upper_half"}, np.triu(FULL) + np.tri(N, k=-1)),
    "filling above": ({"populated_elements": "lower_half"}, np.tril(FULL) + np.tri(N, k=-1).T),
    "origin below": ({"time_origin_location": "lower_left"}, FULL[:, ::-1]),
    "upper, origin below": (
        {"time_origin_location": "lower_left", "populated_elements": "upper_half"},
        np.triu(FULL)[:, ::-1],
    ),
    "lower, origin below": (
        {"time_origin_location": "lower_left", "populated_elements": "lower_half"},
        np.triu(FULL)[:, ::-1],
    ),
    "drawn from below": ({"time_origin_location": "lower_left"}, FULL),
    "bytes": ({"time_origin_location": np.bytes_("upper_left")}, FULL),
}


@pytest.mark.parametrize("word", STORED)
def test_every_way_nxxpcs_stores_matrices_gives_the_same_bins(tmp_path, word):
    storage, matrices = STORED[word]
    report = ingest.ingest(nexus(tmp_path / "A.nxs", matrices, **storage))
    np.testing.assert_array_equal(arrays(report.store)["c2"], upper(FULL))
    assert [(row.label, row.q, row.phi) for row in report.bins] == [
        (1, Q, PHI[0]), (2, Q, PHI[1]), (3, 2 * Q, PHI[2]),
    ]  # fmt: skip
    assert [row.pixels for row in report.bins] == [25] * 3
    attrs = attributes(report.store)
    assert (attrs["source_format"], attrs["frame_time"]) == ("nxxpcs", DT)
    assert any("taken as degrees" in note for note in attrs["notes"])


@pytest.mark.parametrize("half", ["all", "upper_half"])
def test_a_baseline_of_0_is_what_the_attribute_says_even_where_c2_has_not_decayed(tmp_path, half):
    slow = 0.9 * FULL  # above one half everywhere
    path = nexus(
        tmp_path / "A.nxs",
        slow if half == "all" else np.triu(slow),
        baseline_reference=0,
        populated_elements=half,
    )
    report = ingest.ingest(path)
    np.testing.assert_allclose(arrays(report.store)["c2"], upper(1 + slow), rtol=1e-6)
    assert any("1 was added" in note for note in report.notes)


def test_keys_may_be_fewer_than_the_regions(tmp_path):
    keys = {"roi_0003": BINS[2], "roi_0001": BINS[0]}
    report = ingest.ingest(nexus(tmp_path / "A.nxs", keys, storage_mode="data_exchange_keys"))
    assert [(row.label, row.phi) for row in report.bins] == [(1, PHI[0]), (3, PHI[2])]
    np.testing.assert_array_equal(arrays(report.store)["c2"], upper(FULL[[0, 2]]))


def test_q_and_phi_may_be_two_columns_of_one_list(tmp_path):
    path = nexus(tmp_path / "A.nxs", FULL)
    with h5py.File(path, "r+") as file:
        masks = file["entry/instrument/masks"]
        del masks["dynamic_phi_list"], masks["dynamic_q_list"]
        masks["dynamic_q_list"] = np.column_stack([[0.1, 0.1, 0.2], PHI])
        masks["dynamic_q_list"].attrs["units"] = "nm^-1"
    report = ingest.ingest(path)
    assert [row.q for row in report.bins] == pytest.approx([0.01, 0.01, 0.02])
    assert [row.phi for row in report.bins] == PHI


def test_lists_that_are_absent_are_given_as_options(tmp_path):
    path = nexus(tmp_path / "A.nxs", FULL, masks=False)
    with pytest.raises(OptionError, match="give --q in 1/Å"):
        ingest.ingest(path)
    with pytest.raises(OptionError, match="give --phi in degrees"):
        ingest.ingest(path, q=Q)
    report = ingest.ingest(path, q=Q, phi=PHI)
    assert [row.phi for row in report.bins] == PHI
    with pytest.raises(OptionError, match="leave it out"):
        ingest.ingest(nexus(tmp_path / "B.nxs", FULL), q=Q)


NEXUS_MISTAKES = {
    "no attribute": ({"baseline_reference": None}, "has no attribute baseline_reference"),
    "attribute": ({"populated_elements": "upper"}, "did you mean 'upper_half'"),
    "other": ({"storage_mode": "other"}, "storage_mode of .* is 'other'"),
    "order": ({"storage_mode": "one_array_q_last"}, r"is \(frames, frames, q\)"),
    "no detector": ({"detector": "a/b"}, "must have one frame_time"),
}


@pytest.mark.parametrize("word", NEXUS_MISTAKES)
def test_what_an_nxxpcs_file_leaves_open_is_named(tmp_path, word):
    storage, message = NEXUS_MISTAKES[word]
    with pytest.raises(SourceError, match=message):
        ingest.ingest(nexus(tmp_path / "A.nxs", FULL, **storage))


# ESRF: age and lag


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
