"""The labels of sizes."""

import pytest

from homodyne_dask.sweep.layout import size_label


@pytest.mark.parametrize(
    ("pairs", "label"),
    [
        (999_999, "STANDARD"),
        (1_000_000, "LARGE"),
        (9_999_999, "LARGE"),
        (10_000_000, "CHUNKED"),
        (99_999_999, "CHUNKED"),
        (100_000_000, "STREAMING"),
        (10**12, "STREAMING"),
    ],
)
def test_a_size_has_the_label_homodynes_users_know(pairs, label):
    assert size_label(pairs) == label
