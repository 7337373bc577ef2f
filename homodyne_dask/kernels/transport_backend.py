"""The transport models on the engine: the kernel made by hand, and f at any pair of times."""

from functools import partial

import jax
import numpy as np
from jax import Array
from jaxtyping import Float

from homodyne_dask.kernels import (
    transport as kernel,
)
from homodyne_dask.kernels import (
    transport_candidates as candidates,
)
from homodyne_dask.kernels import (
    transport_robust as robust,
)
from homodyne_dask.kernels.backend import Backend
from homodyne_dask.models.shear_factor import decay, sheared, strain, unsheared, wave
from homodyne_dask.models.transport import Convention

ADEQUATE = 0.3
"""A level is used where over three quarters of its frames k ΔC and s ΔG stay below this: a mean
over a cell is then the value at its middle but for some (RESOLVED²/24)."""
Bins = Float[np.ndarray, " bin"]


def transport_f(
    at: kernel.TransportPoint, time: np.ndarray, q: Bins, phi: Bins, t1: np.ndarray, t2: np.ndarray
) -> Float[np.ndarray, "bin ..."]:
    """Return f of bins at times that broadcast together; between frames integrals are linear."""
    scales = at.scales(q, phi)
    k, s = (of.reshape(-1, *[1] * np.ndim(t1 + t2)) for of in (scales.k, scales.s))
    between = partial(_between, time=time, t1=t1, t2=t2)
    dC = np.abs(between(at.rows[-1]))
    shear = at.problem.model.shear
    dG = between(at.rows[-2]) if shear else dC
    with jax.enable_x64(True):
        return np.asarray(_shape(dC, dG, k, s, shear=shear, convention=at.problem.convention))


def _between(values: np.ndarray, time: np.ndarray, t1: np.ndarray, t2: np.ndarray) -> np.ndarray:
    return np.interp(t2, time, values) - np.interp(t1, time, values)


@partial(jax.jit, static_argnames=("shear", "convention"))
def _shape(
    dC: Array, dG: Array, k: Array, s: Array, *, shear: bool, convention: Convention
) -> Array:
    E = decay(convention, k, dC)
    if not shear:
        return unsheared(convention, E)
    return sheared(convention, E, wave(s * strain(convention, dG)[0]))[0]


def transport_adequate(
    at: kernel.TransportPoint, q: Bins, phi: Bins, frames: tuple[int, int], factor: int
) -> bool:
    """Return whether f changes little enough over `factor` frames for block means to show it."""
    first, stop = frames
    steps = np.abs(np.diff(at.rows[-2:, first:stop:factor]))
    if not steps.size:
        return False
    scales = at.scales(q, phi)
    typical = np.quantile(steps, 0.75, axis=1)
    turned = np.abs(scales.s).max() * typical[0] if at.problem.model.shear else 0.0
    return bool(max(turned, scales.k.max() * typical[1]) < ADEQUATE)


def transport_correlation_time(
    at: kernel.TransportPoint, q: Bins, phi: Bins, frames: tuple[int, int]
) -> float:
    """Return after how many frames f is down to 1/e, in the middle of the record and of the bins."""
    scales = at.scales(q, phi)
    first, stop = frames
    C, middle = at.rows[-1], (first + stop) // 2
    decay = np.median(scales.k) * (C[middle:] - C[middle])
    if at.problem.model.shear:
        G = at.rows[-2]
        decay = decay + (np.median(np.abs(scales.s)) * (G[middle:] - G[middle])) ** 2 / 3
    gone = np.flatnonzero(decay > 1)
    return float(gone[0]) if len(gone) else float(stop - middle)


TRANSPORT = Backend(
    kernel.transport_point,
    kernel.transport_gram,
    robust.transport_robust_gram,
    candidates.transport_candidate_grams,
    transport_f,
    transport_adequate,
    transport_correlation_time,
    {
        "gram": kernel.gram_kernel,
        "candidates": candidates.candidates_kernel,
        "robust": robust.robust_kernel,
    },
)
