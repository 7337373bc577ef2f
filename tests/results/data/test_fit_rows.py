"""What is said of a scan after those before it."""

import numpy as np
import pytest

from homodyne_dask.results.data.fit_rows import FitRow, Quantity, changes
from homodyne_dask.results.views.fits_report import _cells


def row(contrast: float, redchi: float = 1.0, words: str = "converged", **more) -> FitRow:
    return FitRow(
        "A.h5", 1, 0.0, outcome=words.upper(), outcome_words=words, contrast=contrast,
        redchi=redchi, **more,
    )  # fmt: skip


STEADY = [row(c, x) for c, x in ((0.30, 1.0), (0.31, 1.02), (0.29, 0.99), (0.30, 1.01))]
SCATTERED = [row(c) for c in (0.1, 0.2, 0.3, 0.4)]


@pytest.mark.parametrize(
    ("now", "before", "said"),
    [
        (row(0.33, 1.1), STEADY, ()),
        (row(0.15, 1.0), STEADY, ("contrast 0.15 (median of the scans before: 0.3)",)),
        (row(0.30, 1.5), STEADY, ("reduced χ² 1.5 (median of the scans before: 1)",)),
        (row(0.15), STEADY[:2], ()),
        (row(0.5), SCATTERED, ()),
        (row(0.15), [row(0.3, part="q1") for _ in range(4)], ()),
        (row(0.3, words="max passes"), [], ("max passes",)),
        (FitRow("B.h5", 2, 0.0, message="no"), STEADY, ()),
    ],
)
def test_what_changed_is_said(now, before, said):
    assert changes(now, before) == said


@pytest.mark.parametrize(
    ("stderr", "words"), [(1.5, "-2.0 ± 1.5 at bound"), (np.nan, "-2 at bound")]
)
def test_a_value_at_a_bound_is_shown_with_the_error_that_tests_of_agreement_use(stderr, words):
    assert str(Quantity("1/s", -2.0, stderr, np.nan, np.nan, 8.0, at_bound=True)) == words


def test_the_values_of_a_row_have_one_notation():
    row = [
        Quantity("1/s", *of, np.nan, np.nan, 8.0) for of in ((7.79e-4, 9.5e-5), (0.0012, 0.0018))
    ]
    assert [str(of) for of in row] == ["(7.79 ± 0.95)e-04", "0.0012 ± 0.0018"]
    assert _cells([*row, None]) == ["0.000779 ± 0.000095", "0.0012 ± 0.0018", "-"]
