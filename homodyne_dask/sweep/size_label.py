"""The words homodyne's users know for the size of a fit; one code path serves them all."""

SIZES = ((1_000_000, "STANDARD"), (10_000_000, "LARGE"), (100_000_000, "CHUNKED"))
"""Pairs below which a fit has the label; above all of them it is STREAMING."""


def size_label(pairs: int) -> str:
    """Return STANDARD, LARGE, CHUNKED or STREAMING for a number of pairs."""
    return next((label for below, label in SIZES if pairs < below), "STREAMING")
