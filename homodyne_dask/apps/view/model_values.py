"""A fitted model on a page: means of f over the cells of a window, f along cuts, rates."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32

from homodyne_dask.apps.view.data_window import CellAxis, times_of
from homodyne_dask.errors import HomodyneDaskError, OptionError
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.data.rate_curves import LEVELS, has_rates, rates_in

NODES = 3
"""Times along a side of a cell at which f is evaluated: exact for f of degree 5 in each time."""
STRIP = 40
"""Rows of cells evaluated at once."""


@dataclass(frozen=True)
class RateLine:
    """A rate against time, with bands of 68 and 95 %."""

    time: Float[np.ndarray, " n"]
    """s."""
    value: Float[np.ndarray, " n"]
    bands: tuple[Float[np.ndarray, "2 n"], ...]
    """Lower and upper edges, the narrower band first; none where no covariance is known."""
    errors: str
    """Covariance of the bands: robust, speckle, naive or none."""


class Rates(NamedTuple):
    """The rates of a result."""

    lines: dict[str, RateLine]
    """J and gamma_dot, those that it has."""
    notes: tuple[str, ...]
    """What qualifies the bands."""


@dataclass(frozen=True)
class ShownModel:
    """The model of a result.

    Its methods raise OptionError where this process does not have the model, or it cannot be evaluated.
    """

    view: FitView
    """The result beside what was fitted."""

    def means(
        self, bin: int, rows: CellAxis, columns: CellAxis
    ) -> Float32[np.ndarray, "rows columns"]:
        """Return the means of f over the cells of a window."""
        nodes, weights = quadrature(rows.side)
        t1, t2 = (
            times_of(self.view.scan, (axis.middles[:, None] + nodes).ravel())
            for axis in (rows, columns)
        )
        n, found = len(nodes), np.empty((rows.number, columns.number), np.float32)
        for first in range(0, rows.number, STRIP):
            known = first if rows == columns else 0  # of a symmetric window one half
            here, there = t1[first * n : (first + STRIP) * n, None], t2[known * n :]
            f = self.f_at(bin, here, there).reshape(len(here) // n, n, -1, n)
            strip = np.einsum("inkm,n,m->ik", f, weights, weights)
            found[first : first + STRIP, known:] = strip
            if rows == columns:
                found[known:, first : first + STRIP] = strip.T
        return found

    def f_at(
        self, bin: int, t1: Float[np.ndarray, "..."], t2: Float[np.ndarray, "..."]
    ) -> Float[np.ndarray, "..."]:
        """Return f of a bin at pairs of times."""
        with _users_function():
            return self.view.model.shape(np.array([bin]), t1, t2)[0]

    def rates(self) -> Rates:
        """Return J and, with shear, gamma_dot; nothing for a model that has no rates."""
        with _users_function():
            if not has_rates(self.view.result):
                return Rates({}, ())
            found = rates_in(self.view)
        kind, t = found.attrs["covariance"], found["t"].values

        def line(name: str) -> RateLine:
            ends = (
                np.stack([found[f"{name}_{end}_{level}"].values for end in ("low", "high")])
                for level in LEVELS
            )
            bands = tuple(band for band in ends if np.isfinite(band).all())
            return RateLine(t, found[name].values, bands, kind if bands else "none")

        lines = {name: line(name) for name in ("J", "gamma_dot") if name in found}
        return Rates(lines, tuple(found.attrs["notes"].splitlines()))


@contextmanager
def _users_function() -> Iterator[None]:
    """Raise OptionError for whatever a user's function raises."""
    try:
        yield
    except HomodyneDaskError:
        raise
    except Exception as e:
        raise OptionError(f"the model cannot be evaluated: {type(e).__name__}: {e}") from e


def quadrature(side: int) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Return frames around the middle of a cell, and weights, of the mean over its `side` frames.

    Gauss's rule for sums (the zeros of a discrete Chebyshev polynomial): all frames of up to NODES.
    """
    n = min(side, NODES)
    k = np.arange(1, n)
    beside = np.sqrt(k**2 * (side**2 - k**2) / (4.0 * (4 * k**2 - 1)))
    nodes, vectors = np.linalg.eigh(np.diag(beside, 1) + np.diag(beside, -1))
    return nodes, vectors[0] ** 2
