"""The report, pinned by text files: a change of wording is a change of a file under tests/results/reports.

To accept new wording: HOMODYNE_DASK_ACCEPT=1 python -m pytest tests/results/views/test_text_report.py, then
read the difference.
"""

import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.known_truth import pulls
from homodyne_dask.results.data.result_tables import (
    covariance_table,
    parameter_table,
    scaling_table,
)
from homodyne_dask.results.views import numbers
from homodyne_dask.results.views.report_facts import facts
from homodyne_dask.results.views.text_report import report_text
from homodyne_dask.solver.state import Outcome

REPORTS = Path(__file__).parent / "reports"
NAN = math.nan
TRUTH = {
    "scenario": "creep",
    "model": "laminar_flow",
    "convention": "physical",
    "gap_angstrom": 2e6,
    "parameters": {
        "D0": 68480.0,
        "alpha": -1.327,
        "D_offset": 1708.0,
        "gamma_dot_t0": 9e-4,
        "beta": -0.212,
        "gamma_dot_t_offset": -2.7e-4,
        "phi0": 2.0,
    },
}


def flow() -> FitResult:
    """A converged fit of simulated data with robust errors."""
    n = 9
    phi = np.linspace(-80, 80, n)
    names = list(TRUTH["parameters"])
    return FitResult(
        outcome=Outcome.CONVERGED,
        parameters=parameter_table(
            {
                "param": names,
                "value": [68612.3, -1.32714, 1722.5, 9.03e-4, -0.2133, -2.7e-4, 1.9971],
                "stderr": [1532.0, 0.00123, 18.7, 1.2e-5, 0.0099, NAN, 0.011],
                "stderr_naive": [912.0, 0.00061, 9.4, 4.4e-6, 0.0047, NAN, 0.0102],
                "dof": [8.0, 5.5, 4.1, 6.0, 6.1, NAN, 3.2],
                "at_bound": [False] * 7,
                "fixed": [False] * 5 + [True, False],
                "unit": ["Å²/s", "", "Å²/s", "1/s", "", "1/s", "degree"],
            }
        ),
        covariance=covariance_table(np.eye(7), names),
        covariance_naive=covariance_table(np.eye(7), names),
        scaling=scaling_table(
            {
                "label": np.arange(9, 9 + n),
                "q": np.full(n, 0.0054),
                "phi": phi,
                "contrast": np.where(phi == 60, 0.0, 0.30 + 0.03 * np.cos(2 * np.deg2rad(phi))),
                "offset": 1.106 + 0.002 * np.sin(2 * np.deg2rad(phi)),
                "redchi": np.where(phi == 80, NAN, 1.0 + 0.001 * np.arange(n)),
                "ndata": np.where(phi == 80, 0, 44850),
                "undetermined": phi == 60,
            }
        ),
        chisqr=359213.4,
        redchi=1.00117,
        ndata=358800,
        nbins=8,
        passes=8,
        history=(),
        compilations={"gram": 1},
        timings={"start": 1.234, "passes": 0.4567, "total": 123.4},
        undetermined=("gamma_dot_t0 and beta are determined only in combination (+0.9951)",),
        warnings=("1 of 9 bins show no decay: their contrast is unknown",),
        config={
            "model": "laminar_flow",
            "convention": "physical",
            "scaling": "individual",
            "gap_angstrom": 2e6,
            "min_lag": 1,
        },
        inputs={
            "store": "A0001_c2.zarr",
            "store_sha256": "ab" * 32,
            "source_file": "A0001_results.hdf",
            "source_sha256": "0123456789abcdef" * 4,
            "source_format": "aps-u",
            "frame_time": 0.1,
            "sigma_source": "counts",
            "notes": ["12 exact zeros became unknown"],
            "frames": [0, 300],
            "seconds": [0.0, 29.9],
            "frames_masked": 2,
            "bins": n,
            "labels": list(range(9, 9 + n)),
        },
        truth=TRUTH,
        version="0.1.0",
        versions={"Python": "3.13.0", "jax": "0.12.0", "numpy": "2.3.1"},
    )


def measured() -> FitResult:
    """A static fit of one bin of unknown q that does not determine everything."""
    base = flow()
    return replace(
        base,
        outcome=Outcome.SINGULAR,
        parameters=parameter_table(
            {
                "param": ["D0", "alpha", "D_offset"],
                "value": [0.012345678, -0.487, -2.0],
                "stderr": [NAN, NAN, NAN],
                "stderr_naive": [0.00042, 0.0996, NAN],
                "dof": [NAN, NAN, NAN],
                "at_bound": [False, False, True],
                "fixed": [False, False, False],
                "unit": ["1/s", "", "1/s"],
            }
        ),
        covariance=None,
        scaling=base.scaling.isel(bin=[0]).assign(q=("bin", [NAN]), phi=("bin", [NAN])),
        undetermined=("D0 and D_offset are not determined: fix one",),
        warnings=("q is unknown: D0 and D_offset are q² times their values, in 1/s",),
        compilations={},
        config=base.config
        | {"model": "static", "scaling": "shared", "gap_angstrom": None, "min_lag": 2},
        inputs=base.inputs | {"notes": [], "source_format": "npz", "sigma_source": "scatter"},
        truth=None,
    )


def many() -> FitResult:
    """More bins than are listed, in a convention other than that of the simulation."""
    base = flow()
    return replace(
        base,
        outcome=Outcome.MAX_PASSES,
        scaling=base.scaling.isel(bin=np.arange(45) % 8),
        undetermined=(),
        warnings=(),
        config=base.config | {"convention": "homodyne"},
    )


def test_the_pull_of_a_periodic_parameter_is_the_shorter_one():
    """phi0 = -89.9 for a truth of 90.05 is 0.05° away, not 180°."""
    made = flow()
    values = made.parameters["value"].copy()
    values.loc["phi0"] = -89.9
    truth = TRUTH | {"parameters": TRUTH["parameters"] | {"phi0": 90.05}}
    turned = replace(made, truth=truth, parameters=made.parameters.assign(value=values))
    assert pulls(turned)["phi0"] == pytest.approx(0.05 / 0.011)
    assert pulls(turned)["D0"] == pytest.approx((68612.3 - 68480) / 1532)


@pytest.mark.parametrize("make", [flow, measured, many])
def test_a_report_reads_as_its_file(make):
    path = REPORTS / f"{make.__name__}.txt"
    text = report_text(make()) + "\n"
    if "HOMODYNE_DASK_ACCEPT" in os.environ:
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("make", [flow, measured, many])
def test_a_report_fits_a_terminal_of_100_columns(make):
    assert max(map(len, report_text(make()).splitlines())) <= 100


def test_print_shows_the_report():
    assert str(flow()) == report_text(flow())


def test_a_pull_uses_the_robust_error_where_it_is_known():
    assert pulls(flow())["D0"] == pytest.approx((68612.3 - 68480) / 1532)
    assert "gamma_dot_t_offset" not in pulls(flow())


@pytest.mark.parametrize("other", [{"convention": "homodyne"}, {"gap_angstrom": 1e6}])
def test_no_truth_is_compared_with_a_fit_of_something_else(other):
    result = flow()
    assert not pulls(replace(result, config=result.config | other))


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (68612.3, 1532, "68600 ± 1500"),
        (1.0, 0.0996, "1.00 ± 0.10"),
        (999.6, 99.6, "1000 ± 100"),
        (-0.001, 0.01, "-0.001 ± 0.010"),
        (-0.0001, 0.01, "0.000 ± 0.010"),
        (9.03e-4, 1.2e-5, "(9.03 ± 0.12)e-04"),
        (1e-9, 1e-3, "0.0000 ± 0.0010"),
        (3.2e8, 4.4e6, "(3.200 ± 0.044)e+08"),
        (12.3456789, NAN, "12.3457"),
        (12.3456789, 0.0, "12.3457"),
        (NAN, 1.0, "-"),
    ],
)
def test_a_value_has_as_many_places_as_two_digits_of_its_error(value, error, text):
    assert numbers.value_and_error(value, error) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (NAN, "-"),
        (0.02, "0.020"),
        (6.1e-4, "0.00061"),
        (1532, "1500"),
        (2.2e-5, "2.2e-05"),
        (0, "0.0"),
        (9.96, "10"),
    ],
)
def test_an_error_has_two_digits(value, text):
    assert numbers.format_error(value) == text


def test_pairs_left_out_are_those_of_the_selection_that_were_not_counted():
    result = flow()
    possible = sum(j - i >= 1 for i in range(300) for j in range(i + 1, 300)) * 9
    said = dict(facts(result))["excluded"]
    assert said.startswith(numbers.format_count(possible - result.ndata))
    later = replace(result, config=result.config | {"min_lag": 3})
    possible = sum(j - i >= 3 for i in range(300) for j in range(i + 1, 300)) * 9
    assert dict(facts(later))["excluded"].startswith(numbers.format_count(possible - result.ndata))
    assert dict(facts(later))["excluded"].endswith("lags below 3")
