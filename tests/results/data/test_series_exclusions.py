"""Series of fits that have something to confess: bounds, no convergence, no power law, small errors."""

from dataclasses import replace

import numpy as np

import homodyne_dask as hd
from homodyne_dask.results.data.series import FitSeries
from homodyne_dask.results.data.series_entry import SeriesEntry
from homodyne_dask.results.views import numbers
from homodyne_dask.solver.state import Outcome
from tests.results.data.test_series import DIFFUSION, Q, at_each_q, said
from tests.results.views.test_text_report import flow
from tests.synthetic import store


def test_rates_that_are_no_power_of_q_are_not_called_one(tmp_path):
    """J at the middle ring twice that of the others: no exponent beside a p of 0."""
    scan = store(at_each_q([DIFFUSION, DIFFUSION * [2, 1, 2], DIFFUSION], n=40), tmp_path)
    series = hd.fit_each(scan, hd.STATIC, over="q", fixed={"alpha": -0.4, "D_offset": 0.0})
    assert series.q_dependence.p < 1e-6
    assert "is no power of q (χ² " in said(series)
    assert "diffusion gives" not in said(series)
    assert "for diffusion" not in said(series)


def ended(values: dict[str, float], at: dict[str, float], **more) -> SeriesEntry:
    """A fit of `flow` with other values; D_offset is at a bound if it is one of its default ones."""
    result = flow()
    table = result.parameters.copy(deep=True)
    for name, value in values.items():
        n = list(table["param"].values).index(name)
        table["value"].values[n] = value
        if name == "D_offset" and abs(value) == 1e4:
            table["at_bound"].values[n] = True
            for key in ("stderr", "stderr_naive", "dof"):
                table[key].values[n] = np.nan
    return SeriesEntry(f"{at['age']:g} s", None, replace(result, parameters=table, **more), "", at)


def test_what_ended_at_a_bound_is_marked_said_and_left_out_of_the_agreement():
    def window(number: int, **values: float) -> SeriesEntry:
        at = {"age": 10.0 * number + 5, "from": 10.0 * number, "to": 10.0 * number + 9}
        return ended(values, at)

    inside = [window(n, D0=68000.0 + 300 * n) for n in range(2)]
    bounds = [window(2, D0=99000.0, D_offset=1e4), window(3, D0=20000.0, D_offset=-1e4)]
    series = FitSeries("age", (*inside, *bounds))
    assert series.agreement["D0"].freedom == 1
    assert series.agreement["gamma_dot_t0"].freedom == 3
    assert "D_offset is at a bound in 25 s, 35 s: D0, alpha and D_offset of these fits" in said(
        series
    )
    assert "D0: consistent in 2 of 4 windows" in said(series)
    assert "gamma_dot_t0: consistent in all windows" in said(series)
    assert "-10000 at bound" in said(series)
    assert series.table["at_bound"].sel(param="D_offset").values.tolist() == [
        False,
        False,
        True,
        True,
    ]


def test_a_fit_that_did_not_converge_is_left_out_and_named():
    entries = [ended({}, {"q": q, "age": 5.0 + n}) for n, q in enumerate(Q)]
    stopped = replace(entries[1].result, outcome=Outcome.MAX_PASSES)
    series = FitSeries("q", (entries[0], replace(entries[1], result=stopped), entries[2]))
    assert "without a value for the tests below: 6 s (max passes)" in said(series)
    assert "D0: consistent at 2 of 3 values of q" in said(series)
    assert "at all q" not in said(series)


def test_a_table_shows_the_lower_bound_where_it_is_larger_than_the_naive_error():
    entry = ended({}, {"q": 0.005, "age": 5.0})
    D0 = entry.quantities["D0"]
    assert D0.error_used == D0.stderr
    D0 = D0._replace(stderr=np.nan)
    assert D0.error_used == D0.stderr_naive
    larger = D0._replace(stderr_lower=3 * D0.stderr_naive)
    assert f"± {numbers.format_error(3 * D0.stderr_naive)} *" in str(larger)
    assert f"± {numbers.format_error(D0.stderr_naive)} *" in str(D0._replace(stderr_lower=1e-9))
