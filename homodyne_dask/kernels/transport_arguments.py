"""The arguments of the kernels of transport models: a block, and the part of the integrals that is in it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from homodyne_dask.kernels.active_subblocks import sub_blocks
from homodyne_dask.kernels.block import Block
from homodyne_dask.kernels.problem import Problem
from homodyne_dask.kernels.subblock_loop import MeasuredBlock, measured_block
from homodyne_dask.kernels.transport_kernels import TransportTables
from homodyne_dask.kernels.transport_point import TransportPoint


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
