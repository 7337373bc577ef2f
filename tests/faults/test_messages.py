"""Messages say what is so: no value that was not given, no error that is not known, no bytes."""

import numpy as np
import pytest

import homodyne_dask as hd
import ingest
from homodyne_dask.cli.yaml_file import read_yaml
from homodyne_dask.errors import HomodyneDaskError
from homodyne_dask.results.views.report_content import parameter_rows
from tests.results.made_results import NAN, changed, flow_result
from tests.results.three_rings import Q, one_line, three_rings
from tests.synthetic import angles, measured, store

RATE = 0.2
"""1/s at the first ring; stretching 1."""


@pytest.fixture(scope="module")
def decaying(tmp_path_factory):
    """Three rings whose rate scales as q², as f = exp(-2 Γ lag)."""
    thetas = [np.array([2 * RATE / Q[0] ** 2, 0.0, 0.0])] * 3
    return store(three_rings(thetas, n=30), tmp_path_factory.mktemp("decaying"))


def test_rates_that_differ_between_rings_come_with_their_power_of_q(decaying):
    series = hd.fit_each(decaying, hd.MODELS["stretched"], over="q", fixed={"stretching": 1.0})
    law = series.power_of_q("rate")
    assert abs(law.exponent - 2) < 4 * law.stderr < 0.4
    assert "rate: inconsistent at all q" in one_line(series)
    assert "rate scales as q to the power 2." in one_line(series)
    assert "as expected for diffusion" in one_line(series)
    assert "p = 0)" not in one_line(series)
    assert series.power_of_q("J") is None


def test_without_q_only_parameters_that_enter_with_it_are_said_to_be_scaled(tmp_path):
    scan = store(measured([2e4, 0.0, 0.0], 20, angles(2)), tmp_path, q=np.full(2, NAN))
    about_q = {
        name: [w for w in hd.fit(scan, hd.MODELS[name]).warnings if w.startswith("q is unknown")]
        for name in ("static", "stretched")
    }
    assert about_q == {
        "static": [
            "q is unknown: the values given for D0 and D_offset are in 1/s and include the factor q²"
        ],
        "stretched": [],
    }


def test_no_error_is_called_known_where_none_is():
    result = flow_result()
    table = result.parameters.copy(deep=True)
    table["stderr"].values[:] = NAN
    _, notes = parameter_rows(changed(result, parameters=table, covariance=None))
    assert "only the naive error is known, which assumes uncorrelated noise" in notes
    table["stderr_naive"].values[:] = NAN
    _, notes = parameter_rows(changed(result, parameters=table, covariance=None))
    assert notes == ("the errors of the parameters are not known",)


def damaged(here, name, content):
    (here / name).write_bytes(content)
    return here / name


HDF5 = b"\x89HDF\r\n\x1a\n" + bytes(100)
FILES = [
    ("a netCDF file", "result.nc", HDF5, hd.load_result, "is damaged or is not JSON .it is not a text file."),
    ("a netCDF file of a series", "series.nc", HDF5, hd.load_series, "it is not a text file.: give"),
    ("a picture as YAML", "fit.yaml", b"\x89PNG", lambda f: read_yaml(f, "x"), "it is not a text file"),
    ("an empty file", "empty.h5", b"", ingest.ingest, "empty.h5 is empty: copy it again"),
    ("words", "words.h5", b"hello, world", ingest.ingest, r"begins with 'hello, w'\)"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("word", "name", "content", "read", "says"), FILES, ids=lambda v: str(v)[:20]
)
def test_what_is_wrong_with_a_file_is_said_in_words(tmp_path, word, name, content, read, says):
    with pytest.raises(HomodyneDaskError, match=says) as raised:
        read(damaged(tmp_path, name, content))
    assert "codec" not in str(raised.value)
    assert "b'" not in str(raised.value)


SELECTIONS = [
    (
        {"phi": 35.0},
        r"no angle within 1° of phi = 35°; the nearest: .*; to select a range, give \(low, high\)",
    ),
    ({"q": Q[0], "phi": (33.0, 34.0)}, r"no bin has q = 0.003 and phi = \(33.0, 34.0\); there"),
    ({"frames": (3, 5)}, r"frames = \(3, 5\) leaves fewer than 3 frames"),
    ({"time": (0.1, 0.5)}, r"^time = \(0.1, 0.5\) leaves fewer than 3 frames"),
]


@pytest.mark.parametrize(("given", "says"), SELECTIONS, ids=str)
def test_a_selection_of_nothing_names_what_was_given(decaying, given, says):
    with pytest.raises(HomodyneDaskError, match=says) as raised:
        decaying.select(**given)
    assert "None" not in str(raised.value)
