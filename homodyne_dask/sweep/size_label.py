"""The labels that homodyne gives to sizes of data."""

SIZE_LABELS = ((1_000_000, "STANDARD"), (10_000_000, "LARGE"), (100_000_000, "CHUNKED"))
"""Number of pairs below which a fit has homodyne's label; above all of them it is STREAMING."""


def size_label(pairs: int) -> str:
    """Return STANDARD, LARGE, CHUNKED or STREAMING for a number of pairs."""
    return next((label for below, label in SIZE_LABELS if pairs < below), "STREAMING")


def size_in_words(points: int) -> str:
    """Return the label of a size and a remark that it has no effect."""
    return f"{size_label(points)}, a label: every size takes one code path"
