"""The transport models at one theta: integrals at all frames of a level."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from homodyne_dask.kernels.active_subblocks import SubBlocks, sub_blocks
from homodyne_dask.kernels.problem import Problem, coarse_frames, coarse_min_lag
from homodyne_dask.models.transport import BinScales, bin_scales, frame_spacing, tables, time_steps

Bins = Float[np.ndarray, " bin"]


@dataclass(frozen=True)
class TransportPoint:
    """The integrals at one theta, at all frames of a level: made once, used by every block."""

    problem: Problem
    theta: Float[np.ndarray, " p"]
    rows: Float[np.ndarray, "rows n"]
    spacing: float
    """Δt of the full resolution [s]."""
    min_lag: int
    """In frames of the level."""
    frames: tuple[int, int]
    """The first of the level that is selected, and the one after the last."""

    def scales(self, q: Bins, phi: Bins) -> BinScales:
        """Return the factors k and s of each bin."""
        problem = self.problem
        return bin_scales(
            problem.model, problem.convention, self.theta, q, phi, problem.gap, self.spacing
        )

    def sub_blocks(self, q: float, i0: int, j0: int, T: int) -> SubBlocks:
        """Return the sub-blocks of a block of bins of one q, active ones first."""
        k = self.scales(np.array([q]), np.zeros(1)).k[0]
        return sub_blocks(i0, j0, T, self.min_lag, k * self.rows[-1:], self.frames)


def transport_point(
    problem: Problem,
    theta: Float[np.ndarray, " p"],
    time: Float[np.ndarray, " n"],
    factor: int = 1,
    frames: tuple[int, int] | None = None,
) -> TransportPoint:
    """Return the integrals at theta; `time` holds all frame times of the full resolution [s].

    frames: the first selected and the one after the last, of the full resolution; by default
    all. With factor frames averaged into one, as the data of a level are, so are the integrals.
    """
    rows = tables(problem.model, problem.convention, theta, time)
    m = rows.shape[1] // factor
    rows = rows[:, : m * factor].reshape(len(rows), m, factor).mean(axis=2)
    spacing = frame_spacing(time, problem.convention)
    span = coarse_frames(frames or (0, len(time)), factor)
    lag = coarse_min_lag(problem.min_lag, factor)
    return TransportPoint(problem, theta, rows, spacing, lag, span)


def point_of_rates(
    problem: Problem,
    rates: Mapping[str, Float[np.ndarray, " n"]],
    phi0: float,
    time: Float[np.ndarray, " n"],
) -> TransportPoint:
    """Return the point of the full resolution at which J [Å²/s] and gamma_dot [1/s] have these values.

    Only f is to be had of it: no theta of the model has such rates.
    """
    theta = problem.model.with_parts(np.ones(problem.model.size), phi0=phi0)
    at = transport_point(problem, theta, time)
    steps = time_steps(problem.convention, time)
    of = np.stack([rates.get("gamma_dot", np.zeros_like(time)), rates["J"]])
    integrals = np.cumsum(0.5 * (of[:, 1:] + of[:, :-1]) * steps, axis=1)
    return replace(at, rows=np.pad(integrals, ((0, 0), (1, 0))))
