"""Photons simulated at a fit, and fitted as it was; errors of a steady flow from photons."""

from dataclasses import replace

import numpy as np
import pytest
import xarray

import homodyne_dask as hd
from homodyne_dask.fitting.fit_toys import _unmirrored
from homodyne_dask.fitting.photons import PhotonScan
from homodyne_dask.kernels.problem import Problem
from homodyne_dask.models.stretched_exponentials import STRETCHED
from homodyne_dask.results.data.fit_rows import fit_row
from ingest.simulate import angles
from tests.speckle_scans import RING, STATIC, STILL
from tests.synthetic import module_scan

DIM = replace(RING, frames=40, pixels=300, mean=2.0)
scan = module_scan(lambda: DIM.scan(1))


@pytest.fixture(scope="module")
def result(scan):
    return hd.fit(scan, **STATIC)


def photons(
    model=hd.STATIC, theta=STILL, contrast=0.25, clusters=(0, 0), n=30, pixels=20_000, counts=3.0
):
    bins = len(clusters)
    same = (np.full(bins, value) for value in (contrast, 1.1, counts))
    return PhotonScan(
        Problem(model), np.asarray(theta, float), 0.1 * np.arange(n), np.full(bins, 0.01), np.zeros(bins),
        *same, np.full(bins, pixels), np.array(clusters),
    )  # fmt: skip


@pytest.mark.parametrize("contrast", [1.0, 0.4, 0.25])
def test_photons_have_the_correlation_of_the_model_with_any_contrast(contrast):
    of = photons(contrast=contrast, clusters=(0,))
    c2 = of.c2(1)[0]
    model = hd.predict("static", STILL, of.time, q=0.01, contrast=contrast, offset=1.1)[0]
    pairs = np.triu_indices(len(of.time), 1)
    size = (1 / 3 + contrast) / np.sqrt(20_000)
    assert np.abs(c2 - model)[pairs].mean() < 2 * size
    assert np.isnan(np.diag(c2)).all()


def test_bins_of_one_cluster_see_one_speckle_and_have_counts_of_their_own():
    pairs = np.triu_indices(30, 1)

    def correlation(clusters):
        of = photons(clusters=clusters, pixels=300, counts=100.0)
        mean = hd.predict("static", STILL, of.time, q=0.01, contrast=0.25, offset=1.1)[0]
        between = np.corrcoef([(one - mean)[pairs] for one in of.c2(3)])
        return between[np.triu_indices(len(clusters), 1)].mean()

    assert correlation((0,) * 6) > 0.7
    assert abs(correlation(range(6))) < 0.3  # of two alone, whose pairs are alike, chance makes 0.5
    two = photons(clusters=(0, 0)).c2(3)
    assert not np.array_equal(two[0], two[1], equal_nan=True)


def test_photons_of_a_model_given_as_f_alone():
    c2 = photons(STRETCHED, [1.0, 0.8], clusters=(0,)).c2(1)[0]
    assert np.isfinite(c2[np.triu_indices(30, 1)]).all()


@pytest.mark.long
def test_toys_scatter_about_the_fit_and_say_how(scan, result):
    toys = hd.toys(result, scan, n=3, counts=2.0, pixels=300)
    table = toys.table
    assert toys.dataset["param"].values.tolist() == ["D0", "alpha", "J"]  # J at the mean age
    D0, alpha = result.parameters["value"].values[:2]
    np.testing.assert_allclose(table["truth"], [D0, alpha, D0 * scan.time.mean() ** alpha])
    assert (table["scatter"] > 0).all()
    assert "3 scans of photons, simulated" in str(toys)
    assert toys.to_dict()["parameters"]["D0"]["scatter"] == float(table["scatter"][0])
    assert len(toys.plot().axes) == 3


@pytest.mark.long
def test_another_seed_is_other_photons_and_the_same_seed_the_same_fits(scan, result):
    given = {"n": 2, "counts": 2.0, "pixels": 300, "weighting": "speckle"}
    first, again = (hd.toys(result, scan, **given).dataset["value"].values for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert (first != hd.toys(result, scan, **given, seed=2).dataset["value"].values).all()


def test_counts_that_are_not_known_are_asked_for(scan, result):
    unknown = replace(result, errors=replace(result.errors, noise=None))
    with pytest.raises(hd.HomodyneDaskError, match="give counts"):
        hd.toys(unknown, scan, n=2)
    with pytest.raises(hd.HomodyneDaskError, match="give counts"):
        hd.design_like(unknown, scan, pixels=300)


@pytest.mark.parametrize(
    ("names", "truth"),
    [
        (["gamma_dot_t0", "beta", "gamma_dot_t_offset", "phi0", "gamma_dot"], [4.5, -0.2, 40, 9, 43]),
        (["v_1", "v_2", "fraction"], [1.0, -3.0, 0.4]),
    ],
)  # fmt: skip
def test_a_draw_of_the_other_sign_is_compared_with_the_truth(names, truth):
    """Of twelve one such draw made the scatter nine times the error."""
    truth, signs = np.array(truth), np.array([-1 if n[0] in "gv" else 1 for n in names])
    draws = np.stack([1.01 * truth, signs * truth, 0.98 * truth])
    np.testing.assert_allclose(_unmirrored(names, draws, truth)[1], truth)
    np.testing.assert_array_equal(_unmirrored(names, draws, truth)[::2], draws[::2])


def test_an_angle_deviates_by_less_than_half_a_turn():
    columns = {"value": [[179.0], [-178.0]], "stderr": [[1.0], [1.0]], "dof": [[9.0], [9.0]]}
    data = xarray.Dataset(
        {name: (("toy", "param"), of) for name, of in columns.items()}
        | {"truth": ("param", [1.0])},
        coords={"param": ["phi0"], "outcome": ("toy", ["CONVERGED", "CONVERGED"])},
    )
    found = hd.Toys(data, {"phi0": 180.0})
    np.testing.assert_allclose(found.deviations[:, 0], [-2.0, 1.0])


def test_a_scan_like_that_of_a_fit_is_planned_with_its_counts_and_pixels(scan, result):
    design = hd.design_like(result, scan, counts=2.0, pixels=300, vary={"frames": [40, 80]})
    expected = design.dataset["stderr"].sel(weighting="pairs").values[0]
    found = result.parameters["stderr"].values[:2]
    assert ((expected / found > 0.5) & (expected / found < 2)).all()
    assert (design.dataset["stderr"].values[:, 1] < design.dataset["stderr"].values[:, 0]).all()


@pytest.mark.long
def test_the_amplitude_of_a_shear_rate_with_a_fixed_offset_is_found(tmp_path):
    made = hd.simulate(tmp_path / "A.h5", "creep", angles=8, frames=100, noise="speckle")
    scan = hd.open_dataset(hd.ingest(tmp_path / "A.h5", tmp_path / "A.zarr").store)
    fixed = {name: made.parameters[name] for name in ("D_offset", "gamma_dot_t_offset")}
    result = hd.fit(scan, "laminar_flow", fixed=fixed, weighting="speckle")
    toys = hd.toys(result, scan, n=3, counts=1, pixels=500)
    place = toys.dataset["param"].values.tolist().index("beta")
    assert (np.abs(toys.deviations[:, place]) < 0.1).all()  # the third was -1.8


STEADY = np.array([2e4, 0.0, 0.0, 5e-4, 0.0, 0.0, 0.0])
SCATTER = 550.0
"""Of J at the mean age, between 40 scans with all seven parameters free."""
OTHERS = {"D_offset": 0.0, "gamma_dot_t_offset": 0.0, "alpha": 0.0, "beta": 0.0}


@pytest.mark.long
def test_the_error_of_J_is_that_of_speckle_however_many_parameters_are_free(tmp_path):
    """All eigenvalues but one are a million million times the smallest: rounding left no variance of J."""
    bins, counts = 10, np.ones((10, 299))
    same = (np.full(bins, of) for of in (0.3, 1.0, 1.0))
    of = PhotonScan(
        Problem(hd.LAMINAR_FLOW, gap=2e6), STEADY, 0.1 * np.arange(299), np.full(bins, 0.0054), angles(bins),
        *same, np.full(bins, 1000), np.arange(bins),
    )  # fmt: skip
    held = {"phi": of.phi, "time": of.time, "q": of.q, "counts": counts, "pixels": of.pixels}
    np.savez(tmp_path / "A.npz", c2=of.c2(4), **held)
    scan = hd.open_dataset(hd.ingest(tmp_path / "A.npz", tmp_path / "A.zarr").store)
    errors = []
    for fixed in (OTHERS, {}):
        result = hd.fit(scan, "laminar_flow", gap=2e6, fixed=fixed)
        age = float(scan.time.mean())
        found = fit_row("", None, result, at={"age": age}).quantities
        assert found["J"].method == "speckle"
        assert found["J"].dof > 20
        assert result.params["phi0"].dof > 20
        at = int(np.abs(result.rates["t"].values - age).argmin())
        assert result.rates["J_stderr"].values[at] == pytest.approx(found["J"].stderr, rel=0.05)
        errors.append(found["J"].stderr)
    assert [*result.findings.of("constant-rate")[0].numbers["rates"]] == ["J", "gamma_dot"]
    assert 0.7 * SCATTER < errors[1] < 1.4 * SCATTER
    assert 0.3 * SCATTER < errors[0] < 1.1 * errors[1]
