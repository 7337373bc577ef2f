"""Fringes that turn too fast for the frames."""

from collections.abc import Iterator

import numpy as np

from homodyne_dask.request.request import Request
from homodyne_dask.results.data.findings import Finding, finding
from homodyne_dask.solver.array_shapes import Theta

HIGHEST = 0.5
"""Turns per frame above which fringes look slower than they are."""


def limit_of_fringes(request: Request) -> str:
    """Return a sentence on the fastest fringes that the frames show, or on the given ones; '' without any."""
    search, scan, beat = request.search, request.scan, request.problem.model.beat
    if beat is None:
        return ""
    spacing = float(np.median(np.diff(scan.time)))
    start = dict(zip(search.names, search.start.tolist(), strict=True))
    names = search.names if beat.law else (beat.speed, beat.exponent, beat.direction)
    # a value that is to be searched is NaN: then the limit alone can be named
    if np.isfinite([start.get(name, 0.0) for name in names]).all():
        for aliased in aliased_fringes(request, search.start):
            return aliased.sentence
    q, highest, unit = "", HIGHEST / spacing, "Hz"
    if beat.direction:
        fastest = float(scan.q.max())
        q, highest, unit = f"{fastest:.4g}", 2 * np.pi * highest / fastest, "Å/s along q"
    limits = {"spacing": spacing, "highest": highest, "unit": unit, "q": q}
    return finding("fringes-limit", **limits).sentence


def aliased_fringes(request: Request, theta: Theta) -> Iterator[Finding]:
    model, scan = request.problem.model, request.scan
    if model.beat is None:
        return
    time = scan.time[scan.use & (scan.time > 0)]
    values = dict(zip(model.names, theta.tolist(), strict=True))
    spacing = float(np.median(np.diff(scan.time)))
    turns = spacing * np.array(
        [model.beat.turns(values, time, *qphi).max() for qphi in zip(scan.q, scan.phi, strict=True)]
    )
    over = np.flatnonzero(turns > HIGHEST)
    if not len(over):
        return
    speed = model.beat.speed
    speed = f"{speed}(t)" if model.beat.law else f"{speed} = {values[speed]:.4g}"
    numbers = {"bins": len(turns), "turns": turns.max(), "limit": HIGHEST}
    yield finding("fringes-aliased", scan.label[over], speed=speed, fast=len(over), **numbers)
