"""Lengths as people write them."""

import pytest

from homodyne_dask.errors import OptionError
from homodyne_dask.models.units import gap_in_angstrom, length_in_angstrom

MICRONS = ["200 um", "200um", "200 µm", "200 μm", "200 micron", "0.2 mm", " 200000 nm ", "2e-4 m"]
ANGSTROMS = ["2e6 A", "2.0E+06 Å", "2000000 Angstrom"]


@pytest.mark.parametrize("text", MICRONS + ANGSTROMS)
def test_a_length_is_read_in_angstrom(text):
    assert length_in_angstrom(text) == pytest.approx(2e6, rel=1e-12)


MISTAKES = ["200", 200.0, "um", "200 parsec", "200 UM", "200 MM", "0 um", "-5 um", "1.2.3 um"]


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_named(text):
    with pytest.raises(OptionError, match=str(text)):
        length_in_angstrom(text)


def test_a_number_from_python_is_in_angstrom():
    assert gap_in_angstrom(2e6) == 2e6


@pytest.mark.parametrize("gap", [200, 2e3, 1e10, "2 m", "200 A"])
def test_a_gap_that_cannot_be_meant_is_refused(gap):
    """200 for 200 um was taken for 200 Å without a word."""
    with pytest.raises(
        OptionError, match="gaps are between 1 um and 10 cm: write it with its unit"
    ):
        gap_in_angstrom(gap)
