"""The order of models by χ² of independent bins that were left out, and which of them the data ask for.

Bins of one fit are independent, pairs of one bin are not: the error of a difference of scores is that of
its scatter over bins. Of the models within one such error of the lowest χ² the simplest is chosen (the rule
of one standard error, Breiman et al. 1984).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from homodyne_dask.errors import SelectionError
from homodyne_dask.results.fit_result import FitResult

MIN_INDEPENDENT_BINS = 3
"""Least number of independent bins whose scores have a scatter that means something."""


class Ranking(NamedTuple):
    """The models by their scores, each the sum of χ² of the bins left out; NaN where it is not known."""

    totals: Float[np.ndarray, " model"]
    above: Float[np.ndarray, " model"]
    """Score less the lowest of the models that describe the data."""
    stderr: Float[np.ndarray, " model"]
    """Of that difference."""
    lowest: int
    """The model with the lowest score of those that describe the data, or of all if none does."""
    chosen: int
    """The simplest of these whose score is not above the lowest by more than the standard error."""


def require_independent_bins(groups: int) -> None:
    """Raise SelectionError where independent bins are too few for a comparison."""
    if groups < MIN_INDEPENDENT_BINS:
        raise SelectionError(
            f"models are compared by bins left out, which takes {MIN_INDEPENDENT_BINS} independent ones, and "
            f"the selection has {groups}: choose a model"
        )


def ranked(results: Sequence[FitResult]) -> Ranking | None:
    """Return the order of fits to the same data, the simplest model first; None where no score is known."""
    tables = [fit.left_out for fit in results]
    columns = [None if of is None else of["left_out_chisqr"].values for of in tables]
    unknown = np.full(max(1 if of is None else len(of) for of in columns), np.nan)
    scores = np.array([unknown if of is None else of for of in columns])
    misfit = np.array([fit.misfit for fit in results])
    totals = scores.sum(1)
    known = np.isfinite(totals)
    if not known.any():
        return None
    left = known & ~misfit
    left = left if left.any() else known
    lowest = int(np.argmin(np.where(left, totals, np.inf)))
    above = scores - scores[lowest]
    stderr = np.sqrt(above.shape[1]) * above.std(axis=1, ddof=1)
    chosen = next(n for n in np.flatnonzero(left) if above[n].sum() <= stderr[n])
    return Ranking(totals, above.sum(1), stderr, lowest, int(chosen))
