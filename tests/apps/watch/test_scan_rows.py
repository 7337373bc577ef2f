"""What is said of a scan after those before it."""

import pytest

from homodyne_dask.apps.watch.scans_page import changes
from homodyne_dask.results.data.fit_rows import FitRow


def row(contrast: float, redchi: float = 1.0, words: str = "converged", **more) -> FitRow:
    at = {"number": 1, "contrast": contrast}
    return FitRow("A.h5", at=at, outcome=words.upper(), outcome_words=words, redchi=redchi, **more)


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
        (row(0.3, words="max passes"), [], ("max passes",)),
        (FitRow("B.h5", message="no"), STEADY, ()),
    ],
)
def test_what_changed_is_said(now, before, said):
    assert changes(now, before) == said
