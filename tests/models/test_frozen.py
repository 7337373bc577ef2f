"""A part of the field that does not move: sums with `frozen`, their fits, errors and choice."""

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import OptionError
from homodyne_dask.models import MODELS, model_named
from tests.speckle_scans import Photons
from tests.synthetic import GAP, store

TIME = np.arange(40) * 0.1
NEAR_1 = "prior=1:0.001"
GEL = {"offset": NEAR_1}
SHEARED = (2e4, -0.3, 100.0, 3e-3, 0.0, 0.0, 10.0)


@pytest.mark.parametrize("fraction", [0.0, 0.3, 1.0])
def test_the_field_of_a_frozen_part_is_constant_and_that_of_a_flow_keeps_its_sign(fraction):
    flow = Photons(SHEARED, len(TIME), q=(0.0054,), phi=(30.0,), gap=GAP, frozen=fraction)
    assert flow.g(0).min() < -0.1 or fraction
    theta = dict(zip(MODELS["laminar_flow"].names, SHEARED, strict=True))
    f = hd.predict(
        "frozen + laminar_flow", theta | {"frozen_fraction": fraction}, TIME, q=0.0054, phi=[30.0],
        gap=GAP, contrast=1.0, offset=0.0,
    )  # fmt: skip
    later = np.triu_indices(len(TIME), 1)
    np.testing.assert_allclose(np.asarray(f)[0][later], flow.g(0)[later] ** 2, atol=1e-9)


@pytest.mark.parametrize(
    ("text", "name", "fractions"),
    [
        ("brownian + frozen", "frozen + brownian", ["frozen_fraction"]),
        ("brownian + brownian + frozen", "frozen + brownian + brownian", ["fraction", "frozen_fraction"]),
        ("frozen + brownian + brownian", "frozen + brownian + brownian", ["fraction", "frozen_fraction"]),
        ("(frozen + brownian) * stretched", "(frozen + brownian) * stretched", ["frozen_fraction"]),
    ],
)  # fmt: skip
def test_the_frozen_part_is_the_first_and_its_fraction_that_of_the_whole(text, name, fractions):
    model = model_named(text).current()
    assert model.name == name
    assert [of for of in model.names if "fraction" in of] == fractions
    assert model_named(name).current() == model


def test_a_frozen_part_alone_is_refused(tmp_path):
    scan = store(Photons((4e3, 0, 0), 30).scan(0), tmp_path)
    for model in ("frozen", MODELS["frozen"]):
        with pytest.raises(OptionError, match="frozen alone has no decay"):
            hd.fit(scan, model)


def test_a_frozen_part_beside_a_free_offset_is_refused(tmp_path):
    # a fit of F = 0.84 ended at F below 0.05 with half of the rate, and an offset of 1.14
    scan = store(Photons((4e3, 0, 0), 30, frozen=0.8).scan(0), tmp_path)
    with pytest.raises(OptionError, match=r"give offset = 'prior=1:0\.001'"):
        hd.fit(scan, "frozen + brownian")
    hd.plan(scan, "frozen + brownian")  # which takes no offset
    for given in ({"offset": "prior=1:0.001"}, {"fixed": {"frozen_fraction": 0.8}}):
        assert hd.fit(scan, "frozen + brownian", **given).passes


@pytest.mark.parametrize(
    "fraction",
    [
        pytest.param(0.05, marks=pytest.mark.long),
        0.3,
        0.8,
        pytest.param(0.95, marks=pytest.mark.long),
    ],
)
def test_rate_and_fraction_of_a_gel_are_found_from_defaults(tmp_path, fraction):
    scan = store(Photons((4e3, 0, 0), 120, pixels=3000, frozen=fraction).scan(5), tmp_path)
    result = hd.fit(scan, "frozen + brownian", **GEL)
    found, truth = result.params, {"D0": 4e3, "frozen_fraction": fraction}
    assert result.converged
    assert not result.misfit
    for name, value in truth.items():
        if np.isnan(found[name].value):
            assert value < found[name].upper_limit < 3 * value
        else:
            assert abs(found[name].value - value) < 3 * found[name].stderr


@pytest.mark.long
def test_errors_of_a_long_record_hold_the_frozen_speckle_that_all_pairs_share(tmp_path):
    """Its contrast and fraction are those of few pixels, however long the record is."""
    rows = []
    for seed in range(8):
        made = Photons((4e4, 0, 0), 800, pixels=400, frozen=0.7)
        scan = store(made.scan(seed), tmp_path, f"{seed}")
        found = hd.fit(scan, "frozen + brownian", **GEL).params
        rows.append([(found[name].value, found[name].stderr) for name in ("D0", "frozen_fraction")])
    value, error = np.array(rows).transpose(2, 0, 1)
    scatter = np.sqrt(((value - [4e4, 0.7]) ** 2).mean(axis=0)) / np.median(error, axis=0)
    assert (
        scatter > 0.4
    ).all()  # with stretches that count as independent 0.1 of D0 and 5 of the fraction
    assert (scatter < 2.0).all()


def test_contrasts_of_a_gel_that_change_with_q_are_no_warning(tmp_path):
    rings = {"q": (0.006, 0.009, 0.012), "frozen": (0.9, 0.6, 0.2)}
    gel = Photons((4e3, 0, 0), 120, pixels=3000, **rings)
    scan = store(gel.scan(2), tmp_path)
    (change,) = hd.fit(scan, "frozen + brownian", **GEL).findings.of("contrast-of-gel")
    assert change.about == ("q",)
    assert change.severity == "info"
    assert change.numbers["high"] > 1.1 * change.numbers["low"]
    assert "'frozen + brownian' --offset prior=1:0.001 --per ring frozen_fraction`" in str(change)
    codes = hd.fit(scan, "brownian").findings.codes
    assert "contrast-changes" in codes
    assert "contrast-of-gel" not in codes


AGEING = Photons((2e4, -0.5, 0), 160, pixels=3000, stretching=0.8, frozen=0.4)
"""Rates as (t1, t2) integrals of a power of t, which stretched_ageing has at the mean of both."""


@pytest.mark.long
def test_an_ageing_gel_has_rate_exponents_and_frozen_part_from_one_fit(tmp_path):
    result = hd.fit(store(AGEING.scan(1), tmp_path), "frozen + stretched_ageing", **GEL)
    assert result.converged
    assert not result.misfit
    for name, truth in {"mu": -0.5, "stretching": 0.8, "frozen_fraction": 0.4}.items():
        found = result.params[name]
        assert abs(found.value - truth) < 3 * found.stderr < 0.6, name
    # g = exp(-½ (q² J lag)^0.8) = exp(-(Γ lag)^0.8), J at the mean age
    Gamma, J = result.derived["Gamma"], 2e4 * result.mean_age**-0.5
    assert abs(Gamma.value - 0.5 ** (1 / 0.8) * 1e-4 * J) < 3 * Gamma.stderr


@pytest.mark.long
def test_the_closest_of_all_models_to_an_ageing_gel_has_its_age_and_its_frozen_part(tmp_path):
    found = hd.compare_models(store(AGEING.scan(2), tmp_path))
    assert (found.chosen, found.adequate) == ("frozen + stretched_ageing", True), found


@pytest.mark.long
def test_each_ring_in_each_window_of_age_has_a_frozen_part_and_a_rate(tmp_path):
    gel = Photons((8e3, 0, 0), 120, q=(0.008, 0.012, 0.018), pixels=3000, frozen=(0.7, 0.5, 0.3))
    scan = store(gel.scan(3), tmp_path)
    series = hd.fit_each(scan, "frozen + brownian", over="q", windows=2, **GEL)
    assert (series.over, series.converged, len(series.entries)) == ("age", True, 6)
    assert {entry.at["q"] for entry in series.entries} == {*gel.q}
    truth = dict(zip(gel.q, gel.frozen, strict=True))
    for entry in series.entries:
        part = entry.quantities["frozen_fraction"]
        assert abs(part.optimum - truth[entry.at["q"]]) < 4 * part.error
    assert [*series.over_q] == ["age = 2.95 s, from = 0 s", "age = 8.95 s, from = 6 s"]
    assert not series.overlap
    for rings in series.over_q.values():
        law = rings.powers_of_q["Gamma"]
        assert abs(law.exponent - 2) < 4 * law.stderr
    legends = [text.get_text() for text in series.plot().legends[0].get_texts()]
    assert any("0.018" in text for text in legends)


@pytest.mark.long
@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.8])
def test_a_frozen_part_is_chosen_where_there_is_one(tmp_path, fraction):
    scan = store(Photons((4e3, 0, 0), 200, pixels=3000, frozen=fraction).scan(7), tmp_path)
    found = hd.compare_models(scan)
    assert found.chosen == ("frozen + brownian" if fraction else "brownian")
    assert ("frozen" in found.sentence) == bool(fraction)
    assert (len(found.fits) > 4) == bool(fraction)
    D0 = found.results[found.chosen].params["D0"]
    assert abs(D0.value - 4e3) < 3 * D0.stderr
