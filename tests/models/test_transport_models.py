"""Brownian motion and power laws: `static` with parameters that are constant by definition."""

import json
import math

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import OptionError
from tests.synthetic import angles, fit_here, measured, store

D0 = 20000.0
FLUID = {"temperature": 298.15, "viscosity": 0.89e-3}


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    scans = measured([D0, 0.0, 0.0], 60, angles(9), sigma=0.02, seed=2)
    return store(scans, tmp_path_factory.mktemp("brownian"))


@pytest.fixture(scope="module")
def brownian(scan):
    return fit_here(scan, hd.BROWNIAN, **FLUID)


@pytest.mark.parametrize(
    ("name", "fixed"),
    [("brownian", {"alpha": 0.0, "D_offset": 0.0}), ("power_law", {"D_offset": 0.0})],
)
def test_a_fit_has_the_bits_of_static_with_these_parameters_fixed(scan, name, fixed):
    ours, static = fit_here(scan, hd.MODELS[name]), fit_here(scan, hd.STATIC, fixed=fixed)
    assert ours.converged
    assert ours.parameters.equals(static.parameters)
    assert ours.chisqr == static.chisqr


def test_brownian_motion_has_one_parameter_and_finds_the_truth(brownian):
    table = brownian.parameters
    assert (~table["fixed"]).values.tolist() == [True, False, False]
    value, error = (float(table[key].sel(param="D0")) for key in ("value", "stderr_naive"))
    assert abs(value - D0) < 5 * error


def test_the_stokes_einstein_coefficient_and_the_radius_are_reported(brownian, tmp_path):
    value, error = (float(brownian.parameters[k].sel(param="D0")) for k in ("value", "stderr"))
    D = brownian.derived["D_SE"]
    assert (D.value, D.stderr, D.unit) == (value / 2, pytest.approx(error / 2, rel=1e-12), "Å²/s")
    # in water at 25 °C a sphere of 50 nm diffuses at 4.91 µm²/s
    radius = brownian.derived["R_h"]
    assert (radius.value, radius.unit) == (pytest.approx(50 * 4.91e8 / D.value, rel=1e-3), "nm")
    assert radius.stderr / radius.value == pytest.approx(error / value, rel=1e-12)
    assert f"D_SE = {D.value:.4g}"[:9] in str(brownian)
    assert "at 298.15 K and 0.00089 Pa·s" in str(brownian)
    brownian.to_json(tmp_path / "r.json")
    read = json.loads((tmp_path / "r.json").read_text())["derived"]
    assert read["R_h"] == radius._asdict()
    assert hd.load_result(tmp_path / "r.json").derived == brownian.derived


def test_other_models_have_no_radius(scan):
    assert fit_here(scan, hd.POWER_LAW).derived == {}
    for options in (FLUID, {"viscosity": 1e-3}):
        with pytest.raises(OptionError, match="Brownian motion, and the model is static"):
            fit_here(scan, hd.STATIC, **options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"temperature": 298.0}, "viscosity is missing"),
        ({"temperature": -3.0, "viscosity": 1e-3}, "temperature = -3.0 is not a positive number"),
        ({"temperature": 298.0, "viscosity": "thick"}, "viscosity = 'thick' is not a positive"),
        ({"temperature": 25, "viscosity": 1e-3}, "temperature = 25 is in K"),
        ({"fixed": {"alpha": 0.1}}, "fixed: alpha is 0 by the definition of this model"),
        ({"initial": {"D_offset": 3.0}}, "initial: D_offset is 0 by the definition"),
        ({"bounds": {"alpha": (-1, 1)}}, "bounds: alpha is 0 by the definition"),
        ({"profile": "alpha"}, "alpha is fixed"),
    ],
)
def test_what_cannot_be_meant_is_refused(scan, options, sentence):
    with pytest.raises(OptionError, match=sentence):
        fit_here(scan, hd.BROWNIAN, **options)


def test_predict_takes_the_one_parameter_there_is():
    time, q = 0.1 * np.arange(5), 0.005
    c2 = hd.predict(hd.BROWNIAN, {"D0": D0}, time, q=q, contrast=0.2, offset=1)
    np.testing.assert_array_equal(
        c2, hd.predict(hd.BROWNIAN, [D0], time, q=q, contrast=0.2, offset=1)
    )
    assert c2[0, 1, 4] == pytest.approx(1 + 0.2 * math.exp(-(q**2) * D0 * 0.3), rel=1e-12)
    for wrong in ({"D0": D0, "alpha": 0.5}, [D0, 0.5]):
        with pytest.raises(OptionError, match=r"alpha is 0 in brownian|has 1 parameters \(D0\), 2"):
            hd.predict(hd.BROWNIAN, wrong, time, q=q)


def test_static_names_the_simpler_model_where_the_data_do_not_determine_it(tmp_path):
    scans = measured([D0, 0.0, 0.0], 60, angles(3), sigma=0.1, seed=2)
    result = fit_here(store(scans, tmp_path), hd.STATIC)
    first, second = result.undetermined
    assert first.startswith("the data do not determine D0 and D_offset")
    assert first.endswith("`--model power_law`")
    assert second.startswith(
        "D0, alpha and D_offset are determined only in combination (correlation"
    )
