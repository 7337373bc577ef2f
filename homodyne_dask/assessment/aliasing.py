"""Fringes that turn too fast for the frames, in sentences."""

import numpy as np
from jaxtyping import Float

from homodyne_dask.request.request import Request

HIGHEST = 0.5
"""Turns per frame above which fringes look slower than they are."""


def limit_of_fringes(request: Request) -> str:
    """Return a sentence on the fastest fringes that the frames show, "" for models without fringes.

    Where the user gave all that the fringes depend on, it says how fast they turn.
    """
    search, scan, beat = request.search, request.scan, request.problem.model.beat
    if beat is None:
        return ""
    spacing = float(np.median(np.diff(scan.time)))
    given = dict(zip(search.names, search.start.tolist(), strict=True))
    known = search.names if beat.law else (beat.speed, beat.exponent, beat.direction)
    if np.isfinite([given.get(name, 0.0) for name in known]).all():
        found = aliased_fringes(request, search.start)
        if found:
            return found
    where, highest, unit = "", HIGHEST / spacing, "Hz"
    if beat.direction:
        q = float(scan.q.max())
        where, highest, unit = f" at q = {q:.4g} 1/Å", 2 * np.pi * highest / q, "Å/s along q"
    return (
        f"fringes can be followed up to half a period per frame of {spacing:.4g} s: faster ones, above "
        f"{highest:.4g} {unit}{where}, appear slower than they are"
    )


def aliased_fringes(request: Request, theta: Float[np.ndarray, " p"]) -> str:
    """Return a sentence where fringes at theta turn more than half a period per frame, else ""."""
    model, scan = request.problem.model, request.scan
    if model.beat is None:
        return ""
    time = scan.time[scan.use & (scan.time > 0)]
    values = dict(zip(model.names, theta.tolist(), strict=True))
    spacing = float(np.median(np.diff(scan.time)))
    turns = spacing * np.array(
        [model.beat.turns(values, time, *at).max() for at in zip(scan.q, scan.phi, strict=True)]
    )
    over = np.flatnonzero(turns > HIGHEST)
    if not len(over):
        return ""
    speed = model.beat.speed
    speed = f"{speed}(t)" if model.beat.law else f"{speed} = {values[speed]:.4g}"
    return (
        f"{speed} moves the fringes of {len(over)} of "
        f"{len(turns)} bins by up to {turns.max():.3g} periods per frame: above {HIGHEST:g}, they appear "
        f"slower than they are, and a lower speed may fit equally well; exclude these bins, or use shorter "
        f"frames"
    )
