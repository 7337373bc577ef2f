"""The velocity profile of a flow, on which its shear rate depends: what c2 would be with the other one."""

from dataclasses import replace

import numpy as np
from jaxtyping import Float

from homodyne_dask.assessment.cell_residuals import Interval, cell_points
from homodyne_dask.assessment.fit_end import FitEnd
from homodyne_dask.kernels.backend import evaluation_of
from homodyne_dask.kernels.backend_interface import Problem
from homodyne_dask.models.transport import Convention, Shear, TransportModel

AT_WALL = 15**0.5
"""γ̇ of a parabolic profile over that of the linear one with the same decay at small strain: with
x = ½ q L cosφ ΔG, their factors are 1 - x²/45 and 1 - x²/3."""


def has_profile(problem: Problem) -> bool:
    """Return whether the model is a flow of one of the two profiles: sinc⁴ is the factor of neither."""
    flows = isinstance(problem.model, TransportModel) and bool(problem.model.shear)
    return flows and problem.convention is Convention.PHYSICAL


def ratio_of_other(model: TransportModel) -> float:
    """Return the shear rate with the other profile over that of the model, for about the same c2."""
    return AT_WALL if model.shear is Shear.LINEAR else 1 / AT_WALL


def change_by_other(end: FitEnd, intervals: list[Interval]) -> Float[np.ndarray, "bin cell"]:
    """Return the means over cells of f with the other profile, and shear rates by so much larger, less f.

    What a fit of the other profile would change beyond that, the fitted parameters do to first order.
    """
    problem, scan = end.request.problem, end.request.scan
    model, time, points = problem.model, scan.time, cell_points(intervals, scan.use)
    times = (np.interp(frames, np.arange(len(time)), time) for frames in (points.i, points.j))
    where = time, scan.q_or_one, scan.phi, *times
    assert problem.gap is not None  # of flow
    gap = problem.gap * ratio_of_other(model)  # f depends on its product with the shear rate alone
    other = replace(problem, model=model.with_other_profile, gap=gap)
    evaluation = evaluation_of(model)
    this, changed = (
        evaluation.f_at(evaluation.point(each, end.theta, time), *where)
        for each in (problem, other)
    )
    return points.mean(changed - this, len(intervals))
