"""The process beside a page that evaluates fitted models; see `model_process`."""

import pickle
import sys
from multiprocessing.connection import Connection

import numpy as np
from jaxtyping import Float, Float32

from homodyne_dask.errors import HomodyneDaskError, OptionError
from homodyne_dask.live.view.model_process import RateLine, Rates
from homodyne_dask.live.view.window import CellAxis, times_of
from homodyne_dask.results.figures.fit_view import FitView
from homodyne_dask.results.rates import LEVELS, has_rates, rates_in
from homodyne_dask.store.scan import open_selection

NODES = 3
"""Times along a side of a cell at which f is evaluated: exact for f of degree 5 in each time."""
STRIP = 40
"""Rows of cells evaluated at once."""


class FittedModels:
    """The models of the process, and what is asked of them."""

    def __init__(self) -> None:
        self.views: list[FitView] = []

    def add(self, held: bytes) -> None:
        """Open a result and what was fitted."""
        result, selection = pickle.loads(held)
        self.views.append(FitView(result, open_selection(selection)))

    def means(
        self, number: int, bin: int, rows: CellAxis, columns: CellAxis
    ) -> Float32[np.ndarray, "rows columns"]:
        """Return the means of f over cells."""
        view = self.views[number]
        nodes, weights = quadrature(rows.side)
        t1, t2 = (
            times_of(view.scan, (axis.middles[:, None] + nodes).ravel()) for axis in (rows, columns)
        )
        n, found = len(nodes), np.empty((rows.number, columns.number), np.float32)
        for first in range(0, rows.number, STRIP):
            known = first if rows == columns else 0  # of a symmetric window one half
            here, there = t1[first * n : (first + STRIP) * n, None], t2[known * n :]
            times = np.minimum(here, there), np.maximum(here, there)
            f = view.model.shape(np.array([bin]), *times)[0].reshape(len(here) // n, n, -1, n)
            strip = np.einsum("inkm,n,m->ik", f, weights, weights)
            found[first : first + STRIP, known:] = strip
            if rows == columns:
                found[known:, first : first + STRIP] = strip.T
        return found

    def f_at(
        self, number: int, bin: int, t1: Float[np.ndarray, " n"], t2: Float[np.ndarray, " n"]
    ) -> Float[np.ndarray, " n"]:
        """Return f at pairs of times."""
        return self.views[number].model.shape(np.array([bin]), t1, t2)[0]

    def rates(self, number: int) -> Rates:
        """Return the rates of a result."""
        view = self.views[number]
        if not has_rates(view.result):
            return Rates({}, ())
        found = rates_in(view)
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


def quadrature(side: int) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Return frames around the middle of a cell, and weights, of the mean over its `side` frames.

    Gauss's rule for sums (the zeros of a discrete Chebyshev polynomial): all frames of up to NODES.
    """
    n = min(side, NODES)
    k = np.arange(1, n)
    beside = np.sqrt(k**2 * (side**2 - k**2) / (4.0 * (4 * k**2 - 1)))
    nodes, vectors = np.linalg.eigh(np.diag(beside, 1) + np.diag(beside, -1))
    return nodes, vectors[0] ** 2


def _serve(connection: Connection) -> None:
    """Answer requests until the connection ends."""
    models = FittedModels()
    while True:
        try:
            what, *arguments = connection.recv()
        except (EOFError, ConnectionError):
            return
        try:
            answer = getattr(models, what)(*arguments)
        except HomodyneDaskError as e:
            answer = e
        except Exception as e:  # of a user's function
            answer = OptionError(f"the model cannot be evaluated: {type(e).__name__}: {e}")
        connection.send(answer)


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))
