"""What f is: golden values, the reference, corners; `static` with parameters that are constant."""

import json
from dataclasses import replace

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import OptionError
from homodyne_dask.fitting.predict import predict
from homodyne_dask.models import LAMINAR_FLOW, STATIC, Convention
from homodyne_dask.models.transport import frame_spacing
from homodyne_dask.results.views.report_content import derived_sentences
from tests import reference
from tests.synthetic import FLOW, GAP, Q, angles, fit_here, measured, module_scan, store

D0 = 20000.0
GOLDEN = {
    "times": np.arange(8) * 0.1,
    "q": 0.0054,
    "gap": 2.0e6,
    "phi": (-30, 0, 77.5),
    "contrast": (0.30, 0.25, 0.35),
    "offset": (1.00, 1.02, 0.98),
    "convention": "homodyne",
}
GOLDEN_VALUES = [
    (STATIC, [5000, -0.5, 10], (0, 1, 4), 1.27311536846742),
    (STATIC, [5000, -0.5, 10], (2, 0, 6), 1.26909216296485),
    (LAMINAR_FLOW, [19231, -1.2, 150, 2.0e-3, -0.6, 1.0e-4, -4], (0, 1, 4), 1.00068036196317),
    (LAMINAR_FLOW, [19231, -1.2, 150, 2.0e-3, -0.6, 1.0e-4, -4], (2, 0, 6), 0.99250615899188),
]


@pytest.mark.parametrize(("model", "theta", "at", "value"), GOLDEN_VALUES)
def test_predict_and_the_reference_have_the_golden_values_of_the_homodyne_convention(
    model, theta, at, value
):
    assert predict(model, theta, **GOLDEN)[at] == pytest.approx(value, abs=1e-12, rel=0)
    b, i, j = at
    f = reference.f_homodyne(
        np.array(theta, float), GOLDEN["times"], GOLDEN["q"], GOLDEN["phi"][b], GOLDEN["gap"]
    )
    c2 = GOLDEN["offset"][b] + GOLDEN["contrast"][b] * f[i, j]
    assert c2 == pytest.approx(value, abs=1e-12, rel=0)


UNEVEN = np.cumsum([0.0, 0.1, 0.1, 0.3, 0.05, 0.1, 2.0, 0.1, 0.1, 0.1])
TIMES = [
    ("even", 0.1 * np.arange(30)),
    ("after a wait", 300 + 0.1 * np.arange(30)),
    ("uneven", UNEVEN),
    ("two frames", np.array([0.0, 0.5])),
]
TRUTHS = [
    ("static", [5000, -0.5, 10]),
    ("exponent -2 at t = 0", [50, -2.0, 0]),
    ("J at its floor at late times", [5000, -1.5, -2000]),
    ("J at its floor always", [1.0, 0.0, -9000]),
    ("flow", FLOW),
    ("flow that turns round", [2500, -0.3, 100, 1e-3, -0.5, -1e-3, 17]),
    ("flow across a bin", [2500, -0.3, 100, 1e-3, -0.5, 1e-3, 120]),
    ("many turns of the sinc", [100, 0, 0, 0.5, 0.3, 1e-3, -40]),
]


# the homodyne convention refuses uneven times
SETTINGS = [("physical", *row) for row in TIMES] + [
    ("homodyne", *row) for row in TIMES if row[0] != "uneven"
]


@pytest.mark.parametrize(
    ("convention", "word", "time"), SETTINGS, ids=[f"{c}-{w}" for c, w, _ in SETTINGS]
)
@pytest.mark.parametrize(("name", "theta"), TRUTHS, ids=[w for w, _ in TRUTHS])
def test_predict_is_the_reference(convention, word, time, name, theta):
    theta = np.array(theta, float)
    model = STATIC if len(theta) == 3 else LAMINAR_FLOW
    phi = np.array([-30.0, 0.0, 77.5])
    found = predict(model, theta, time, q=Q, phi=phi, gap=GAP, convention=convention)
    upper = np.triu_indices(len(time), 1)
    for b in range(3):
        with np.errstate(over="ignore"):
            wanted = reference.CONVENTIONS[convention](theta, time, Q, phi[b], GAP)
        np.testing.assert_allclose(found[b][upper], wanted[upper], rtol=0, atol=2e-13)


def test_the_homodyne_convention_names_the_first_uneven_step():
    with pytest.raises(OptionError, match=r"frames 2 and 3 .* 0\.3 s apart"):
        frame_spacing(UNEVEN, Convention.HOMODYNE)


@pytest.mark.parametrize(
    "time", [[0.0], [0.0, 0.0, 1.0], [0.0, 2.0, 1.0], [0.0, np.nan, 1.0], [0.0, np.inf]]
)
def test_times_that_do_not_increase_are_refused(time):
    with pytest.raises(OptionError, match="finite numbers in increasing order"):
        frame_spacing(np.array(time))


scan = module_scan(lambda: measured([D0, 0.0, 0.0], 60, angles(9), sigma=0.02, seed=2))


@pytest.fixture(scope="module")
def brownian(scan):
    return fit_here(scan, hd.BROWNIAN)


@pytest.mark.parametrize(
    ("name", "fixed"),
    [("brownian", {"alpha": 0.0, "D_offset": 0.0}), ("power_law", {"D_offset": 0.0})],
)
def test_a_fit_has_the_bits_of_static_with_these_parameters_fixed(scan, name, fixed):
    ours, static = fit_here(scan, hd.MODELS[name]), fit_here(scan, hd.STATIC, fixed=fixed)
    assert ours.converged
    assert ours.parameters.equals(static.parameters)
    assert ours.chisqr == static.chisqr


COUETTE = {"D0": 2500.0, "gamma_dot_t0": 2e-3, "phi0": 5.0}


@pytest.mark.long
def test_constant_rates_of_a_flow_are_found_and_the_gap_is_needed(tmp_path):
    flow = measured([2500.0, 0, 0, 2e-3, 0, 0, 5.0], 100, angles(12), dt=0.2)
    scan = store(flow, tmp_path)
    result = hd.fit(scan, "couette", gap="200 um")
    assert result.converged
    assert [name for name, one in result.params.items() if one.vary] == list(COUETTE)
    for name, value in COUETTE.items():
        assert abs(result.params[name].value - value) < 5 * result.params[name].stderr
    with pytest.raises(OptionError, match="gap"):
        hd.fit(scan, "couette")


def test_the_stokes_einstein_coefficient_is_reported(brownian, tmp_path):
    value, error = (float(brownian.parameters[k].sel(param="D0")) for k in ("value", "stderr"))
    D = brownian.derived["D_SE"]
    assert (D.value, D.stderr, D.unit) == (value / 2, pytest.approx(error / 2, rel=1e-12), "Å²/s")
    assert f"D_SE = {D.value:.4g}"[:9] in str(brownian)
    brownian.to_json(tmp_path / "r.json")
    read = json.loads((tmp_path / "r.json").read_text())["derived"]
    assert read["D_SE"] == {key: None if one != one else one for key, one in D.to_dict().items()}
    assert repr(hd.load_result(tmp_path / "r.json").derived) == repr(brownian.derived)


def test_a_quantity_that_follows_from_d0_has_an_error_exactly_where_d0_has_one(brownian):
    table = brownian.parameters.copy(deep=True)
    table["stderr"].loc[{"param": "D0"}] = np.nan
    assert np.isfinite(float(table["stderr_naive"].sel(param="D0")))
    derived = replace(brownian, parameters=table).derived
    assert [name for name, of in derived.items() if np.isnan(of.stderr)] == ["D_SE"]
    assert "±" not in "".join(derived_sentences(replace(brownian, parameters=table)))
