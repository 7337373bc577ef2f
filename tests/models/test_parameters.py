"""What may vary, lengths as people write them, and how mistakes are named."""

import math

import numpy as np
import pytest

from homodyne_dask.errors import OptionError
from homodyne_dask.models import LAMINAR_FLOW, STATIC
from homodyne_dask.models.parameters import Parameter, search
from homodyne_dask.request.option_types import gap_in_angstrom, length_in_angstrom


def test_by_default_all_is_free_and_unknown():
    found = search(LAMINAR_FLOW.parameters)
    assert found.names == LAMINAR_FLOW.names
    assert np.isnan(found.start).all()
    assert found.free.all()
    assert found.lower.tolist() == [1, -2, -1e4, 1e-8, -2, -0.1, -90]
    assert found.upper.tolist() == [1e12, 2, 1e4, 1, 2, 0.1, 90]
    assert found.period.tolist() == [math.inf] * 6 + [180]


PHI0 = [
    *(
        (None, *pair)
        for pair in ((0, 0), (90, 90), (-90, -90), (91, -89), (-91, 89), (180, 0), (450, 90), (-271, 89))
    ),
    ((-90, 90), 90.4, -89.6),
    ((-180, 180), 180.4, 0.4),  # into the middle of the period
    ((0, 180), 180.4, 0.4),
    ((-10, 10), 12, 10),  # a wall
]  # fmt: skip


@pytest.mark.parametrize(("bounds", "given", "wanted"), PHI0)
def test_phi0_is_wrapped_into_bounds_of_a_period_and_clipped_at_others(bounds, given, wanted):
    """Its own default bounds, given, made walls of them: a truth of 90.4° ended at 90°."""
    chosen = search(LAMINAR_FLOW.parameters, bounds=bounds and {"phi0": bounds})
    phi0 = chosen.inside(np.array([100.0, 0, 0, 1e-3, 0, 0, given]))[6]
    assert abs((phi0 - wanted + 90) % 180 - 90) < 1e-9
    assert chosen.lower[6] <= phi0 <= chosen.upper[6]


def test_others_are_clipped_and_fixed_ones_left_alone():
    chosen = search(STATIC.parameters, fixed={"D_offset": 5e4}, bounds={"alpha": (-1, 1)})
    assert chosen.inside(np.array([0.0, 7.0, 5e4])).tolist() == [1.0, 1.0, 5e4]
    flow = search(LAMINAR_FLOW.parameters, fixed={"gamma_dot_t0": 0.0, "phi0": 130.0})
    assert flow.inside(np.array([5e3, 0, 0, 0, 0, 0, 130.0]))[[3, 6]].tolist() == [0.0, 130.0]


MISTAKES = [
    {"initial": {"d0": 1.0}}, {"fixed": {"offset": 1.0}}, {"bounds": {"gamma": (0, 1)}},
    {"initial": {"alpha": 3}}, {"initial": {"alpha": "x"}}, {"fixed": {"alpha": math.nan}},
    {"initial": {"D0": math.inf}}, {"bounds": {"alpha": (1, -1)}}, {"bounds": {"alpha": (1, 1)}},
    {"bounds": {"alpha": (1,)}}, {"bounds": {"alpha": ("a", "b")}}, {"bounds": {"alpha": (math.nan, 1)}},
    {"initial": {"D0": 5}, "fixed": {"D0": 5}},
]  # fmt: skip


@pytest.mark.parametrize("given", MISTAKES, ids=str)
def test_a_mistake_names_the_parameter(given):
    (name,) = next(iter(given.values()))
    with pytest.raises(OptionError, match=name):
        search(STATIC.parameters, **given)


@pytest.mark.parametrize("bounds", [(2, 1), (1, 1), (float("nan"), 1), ("low", 1), (0, 1, 2)])
def test_a_parameter_has_a_lower_bound_below_an_upper_one(bounds):
    with pytest.raises(
        OptionError, match=r"bounds of k: .*(is not below|is not a pair of numbers)"
    ):
        Parameter("k", bounds=bounds)


def test_a_value_that_is_fixed_is_inside_bounds_that_are_given():
    with pytest.raises(OptionError, match="fixed alpha = 3 is outside its bounds -1 to 1"):
        search(STATIC.parameters, fixed={"alpha": 3}, bounds={"alpha": (-1, 1)})
    inside = search(STATIC.parameters, fixed={"alpha": 0.5}, bounds={"alpha": (-1, 1)})
    assert inside.start[1] == 0.5


MICRONS = ["200 um", "200um", "200 µm", "200 μm", "200 micron", "0.2 mm", " 200000 nm ", "2e-4 m"]
ANGSTROMS = ["2e6 A", "2.0E+06 Å", "2000000 Angstrom"]


@pytest.mark.parametrize("text", MICRONS + ANGSTROMS)
def test_a_length_is_read_in_angstrom(text):
    assert length_in_angstrom(text) == pytest.approx(2e6, rel=1e-12)


WRONG_LENGTHS = [
    "200",
    200.0,
    "um",
    "200 parsec",
    "200 UM",
    "200 MM",
    "0 um",
    "-5 um",
    "1.2.3 um",
]


@pytest.mark.parametrize("text", WRONG_LENGTHS)
def test_a_mistake_is_named(text):
    with pytest.raises(OptionError, match=str(text)):
        length_in_angstrom(text)


@pytest.mark.parametrize("gap", [200, 2e3, 1e10, "2 m", "200 A"])
def test_a_gap_that_cannot_be_meant_is_refused(gap):
    """200 for 200 um was taken for 200 Å without a word."""
    with pytest.raises(
        OptionError, match="gaps are between 1 um and 10 cm: write it with its unit"
    ):
        gap_in_angstrom(gap)
