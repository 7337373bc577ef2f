"""f of the transport models at any pairs of times, and what else is computed of them without JAX."""

import numpy as np
from jaxtyping import Float

from homodyne_dask.kernels.interface import Evaluation
from homodyne_dask.kernels.transport_point import Bins, TransportPoint, transport_point
from homodyne_dask.kernels.transport_rates import transport_rates, transport_rates_of_draws
from homodyne_dask.models.shear_factor import decay, sheared, strain, unsheared, wave
from homodyne_dask.models.sincos import Array
from homodyne_dask.models.transport import Convention

AT_ONCE = 16384
"""Values of f that are computed together: their fields fit the second-level cache."""


def transport_f(
    at: TransportPoint, time: np.ndarray, q: Bins, phi: Bins, t1: np.ndarray, t2: np.ndarray
) -> Float[np.ndarray, "bin ..."]:
    """Return f of bins at times that broadcast together; between frames integrals are linear."""
    problem, scales = at.problem, at.scales(q, phi)
    k, s = scales.k[:, None], scales.s[:, None]
    both = _between(at.rows[-1], time, t1, t2)
    dC = both.ravel()
    dG = _between(at.rows[-2], time, t1, t2).ravel() if problem.model.shear else dC
    f, some = np.empty((len(q), dC.size)), max(AT_ONCE // len(q), 1)
    with np.errstate(divide="ignore", invalid="ignore"):  # 1/x at x = 0, where series are taken
        for n in range(0, dC.size, some):
            one = slice(n, n + some)
            f[:, one] = f_at(
                np.abs(dC[one]),
                dG[one],
                k,
                s,
                shear=problem.model.shear,
                convention=problem.convention,
            )
    return f.reshape(len(q), *both.shape)


def _between(
    values: np.ndarray, time: np.ndarray, t1: np.ndarray, t2: np.ndarray
) -> Float[np.ndarray, "..."]:
    return np.interp(t2, time, values) - np.interp(t1, time, values)


def f_at(dC: Array, dG: Array, k: Array, s: Array, *, shear: bool, convention: Convention) -> Array:
    """Return f from ΔC, ΔG and the scales k and s, which broadcast: arrays of JAX or of NumPy."""
    E = decay(convention, k, dC)
    if not shear:
        return unsheared(convention, E)
    return sheared(convention, E, wave(s * strain(convention, dG)[0]))[0]


TRANSPORT_EVALUATION = Evaluation(
    transport_point, transport_f, transport_rates, transport_rates_of_draws
)
