"""Transport models at many thetas: the wide Gram, and f as a function that JAX traces."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float

from homodyne_dask.kernels.block import Block
from homodyne_dask.kernels.compiled import kernel
from homodyne_dask.kernels.gram import WideGram
from homodyne_dask.kernels.interface import PairSet, PairTimes
from homodyne_dask.kernels.on_cpu import float64_beside
from homodyne_dask.kernels.pair_fields import (
    CommonFields,
    common_fields,
    field_at_rest,
    waves,
)
from homodyne_dask.kernels.problem import Problem
from homodyne_dask.kernels.subblock_loop import BinPairs, MeasuredBlock, SubBlock
from homodyne_dask.kernels.transport_arguments import arguments_of_points, family
from homodyne_dask.kernels.transport_f import f_at
from homodyne_dask.kernels.transport_kernels import TransportTables
from homodyne_dask.kernels.transport_point import TransportPoint
from homodyne_dask.kernels.wide_sums import wide_moments
from homodyne_dask.models.shear_factor import sheared, wave
from homodyne_dask.models.transport import (
    Convention,
    bin_scales,
    frame_spacing,
    positive_times,
    rows_of,
    time_steps,
)

_NEAR = 1e-4
"""|x| below which sin x / x is 1 - x²/6 to rounding; above, sin x is known to 1e-12 of itself."""


def transport_wide_gram(
    points: Sequence[TransportPoint], block: Block, data: Float[np.ndarray, "padded 4"] | None
) -> tuple[WideGram, Float[np.ndarray, "padded 4"]]:
    """Return the wide Gram of every bin of the block, in float64, and the sums of the data alone.

    It is compiled for each number of points. data: as in `transport_gram`.
    """
    sums, bins = np.zeros((len(block.c2), 4)) if data is None else data, len(block.q)
    arguments = arguments_of_points(points, block)
    with float64_beside(block.c2):
        found = wide_kernel(*arguments, sums, data is None, **family(points[0].problem))
        moments, sums = (np.asarray(part) for part in found)
    return WideGram(moments[:bins], sums[:bins, 3].astype(np.int64)), sums


@kernel("shear", "convention")
def wide_kernel(
    block: MeasuredBlock,
    tables: TransportTables,
    data: Float[Array, "padded 4"],
    fresh: Bool[Array, ""],
    *,
    shear: bool,
    convention: Convention,
) -> tuple[Float[Array, "padded m m"], Float[Array, "padded 4"]]:
    """Return the wide moments and the sums of the data of every bin; tables as in `candidates_kernel`."""
    s, rows, columns = (jnp.asarray(part) for part in (tables.s, tables.rows, tables.columns))
    trig = jax.vmap(lambda s, r, c: waves(s, r[0], c[0], jnp.float64))(s, rows, columns)

    def common(at: SubBlock) -> CommonFields:
        def of_point(here: Array, there: Array) -> CommonFields:
            k = jnp.asarray(tables.k)
            return common_fields(convention, k, here, there, at.counted, jnp.float64)

        return jax.vmap(of_point)(*at.cut(rows, columns))

    def f_of(on: CommonFields, pairs: BinPairs, known: Bool[Array, "R S"]) -> Array:
        if not shear:
            return field_at_rest(convention, on.E, known)
        scale = s[:, pairs.bin, None, None]
        x, sine = scale * on.strain, trig.between(pairs.bin, pairs.at)[0]
        if convention is Convention.PHYSICAL:
            sinc = jnp.where(jnp.abs(x) < _NEAR, 1 - x * x / 6, sine * on.inverse * (1 / scale))
            return jnp.where(known, on.E * sinc * sinc, 0)
        return jnp.where(known, sheared(convention, on.E, wave(x))[0], 0)

    data = lax.cond(fresh, block.data_sums, lambda: data)
    return wide_moments(block, data, len(rows), common, f_of), data


def transport_pair_times(problem: Problem, time: np.ndarray) -> PairTimes:
    """Return the times from which `transport_f_of_theta` integrates."""
    convention, spacing = problem.convention, frame_spacing(time, problem.convention)
    steps = time_steps(convention, time)
    return PairTimes(positive_times(convention, time, spacing), steps, spacing)


def transport_f_of_theta(theta: Any, at: PairSet, model: Any, convention: Convention) -> Array:
    """Return f at theta of bins at pairs of frames, (bin, pair), for JAX to trace."""
    rows: Any = rows_of(model, convention, theta, at.times.t, at.times.steps)
    scales = bin_scales(model, convention, theta, at.q, at.phi, at.gap, at.times.spacing)
    dC: Any = rows[-1, at.j] - rows[-1, at.i]
    dG: Any = rows[-2, at.j] - rows[-2, at.i] if model.shear else dC
    k, s = jnp.asarray(scales.k)[:, None], jnp.asarray(scales.s)[:, None]
    return f_at(dC, dG, k, s, shear=model.shear, convention=convention)
