"""The transport models at one theta: integrals at all frames of a level, and their part in a block."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from homodyne_dask.kernels.active_subblocks import SubBlocks, sub_blocks
from homodyne_dask.kernels.block import Block
from homodyne_dask.kernels.problem import Problem, coarse_frames, coarse_min_lag
from homodyne_dask.kernels.subblock_loop import MeasuredBlock, measured_block
from homodyne_dask.kernels.transport_kernels import TransportTables
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


def centred(
    rows: Float[np.ndarray, "rows n"], i0: int, j0: int, T: int, *, ones: bool = True
) -> tuple[Float[np.ndarray, "rows T"], Float[np.ndarray, "rows T"]]:
    """Return the tables of the block's rows and columns around one common origin.

    `ones` says that the first row is the constant 1, which stays.
    """
    n = rows.shape[1]
    i = np.minimum(np.arange(i0, i0 + T), n - 1)
    j = np.minimum(np.arange(j0, j0 + T), n - 1)
    origin = 0.5 * (rows[:, i[T // 2]] + rows[:, j[T // 2]])
    if ones:
        origin[0] = 0.0
    return rows[:, i] - origin[:, None], rows[:, j] - origin[:, None]


def family(problem: Problem) -> dict[str, Any]:
    """Return the static arguments of all kernels."""
    return {"shear": problem.model.shear, "convention": problem.convention}


def family_with_derivatives(problem: Problem) -> dict[str, Any]:
    """Return the static arguments of kernels that take the tables of derivatives, too."""
    diffusion = problem.model.diffusion
    return family(problem) | {"diffusion": diffusion.stop - diffusion.start}


def arguments_at(at: TransportPoint, block: Block) -> tuple[MeasuredBlock, TransportTables]:
    """Return the arguments of kernels at one theta."""
    rows, columns = centred(at.rows, block.i0, block.j0, block.c2.shape[-1])
    scales = at.scales(block.q, block.phi)
    cut = at.sub_blocks(block.q[0], block.i0, block.j0, block.c2.shape[-1])
    tables = TransportTables(
        rows, columns, scales.k[0], block.padded(scales.s), block.padded(scales.ds)
    )
    return measured_block(block, cut, at.min_lag), tables


def arguments_of_points(
    points: Sequence[TransportPoint], block: Block
) -> tuple[MeasuredBlock, TransportTables]:
    """Return the arguments of kernels at several thetas: tables of G and C alone, an axis of points first."""
    T = block.c2.shape[-1]
    both = [centred(at.rows[-2:], block.i0, block.j0, T, ones=False) for at in points]
    scales = [at.scales(block.q, block.phi) for at in points]
    kC = np.array([of.k[0] * at.rows[-1] for of, at in zip(scales, points, strict=True)])
    cut = sub_blocks(block.i0, block.j0, T, points[0].min_lag, kC, points[0].frames)
    tables = TransportTables(
        np.array([rows for rows, _ in both]),
        np.array([columns for _, columns in both]),
        scales[0].k[0],
        np.array([block.padded(of.s) for of in scales]),
        block.padded(scales[0].ds),
    )
    return measured_block(block, cut, points[0].min_lag), tables
