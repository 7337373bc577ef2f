"""`simulate`: files of scans of known parameters, with the noise of pairs or of counted photons."""

from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Float

import ingest as data
from homodyne_dask.cluster.workers import JAX_BYTES, require_memory
from homodyne_dask.errors import require_count, require_known, require_type, shown
from homodyne_dask.fitting.predict import c2_of_point, predict
from homodyne_dask.kernels.backend_interface import Problem
from homodyne_dask.kernels.transport_evaluation import (
    TransportPoint,
    f_at,
    point_of_rates,
    sign_at,
)
from homodyne_dask.models import LAMINAR_FLOW, MODELS, STATIC, Convention, convention_named
from homodyne_dask.models.transport import DIRECTION, frame_spacing, positive_times, true_rates
from homodyne_dask.store.files import path_of

ARRAYS = 6
"""Most arrays of frames x frames float64 numbers that a simulation holds at once."""
PHOTON_ARRAYS = 4
"""The same of pixels x frames float32 numbers, of simulated photons."""
MIN_FRAMES = 3
AT_ONCE = 4_000_000
RIDGE = 1e-6
"""Power of the field without memory, by which its root is well conditioned: all machines count alike."""


def simulate(
    path: str | Path,
    scenario: str = "creep",
    *,
    angles: int = 23,
    frames: int = 300,
    rings: int = 1,
    seed: int = 1,
    layout: str = "aps-u",
    convention: str = "physical",
    noise: str = "pairs",
    overwrite: bool = False,
) -> data.Scenario:
    """Simulate a scan with known parameters and noise, and write it to a result file.

    path: the HDF5 file. scenario: creep, brownian, static, ageing, andrade or step. angles: number of
    bins of each ring, spread over half a turn. rings: of q, from half to twice that of the scenario if there
    are several. frames: length of the record; a matrix takes 8·frames² bytes. seed: of the noise.
    layout: aps-u or aps-legacy. convention: physical or homodyne. overwrite: replace the file. noise:
    pairs, independent for each pair of frames, for which standard errors, which expect speckle, are too large
    (1.8 times for 2 bins of 40 frames); or speckle, photons counted in moving speckle pixel by pixel, whose
    pairs are correlated like measured ones (about 0.2 s per angle of 300 frames).

    Returns the scenario: model, parameters, q [1/Å], gap [Å], frame_time [s]; the file contains them, and
    the report of a fit prints them beside the estimates. Raises a HomodyneDaskError for invalid input.

    >>> hd.simulate("B0001.h5", "brownian", angles=2, frames=20).model
    'brownian'
    """
    file = path_of("path", path)
    require_known(scenario, data.SCENARIOS, f"scenario {shown(scenario)} is unknown")
    case = data.SCENARIOS[scenario]
    require_count("angles", angles)
    require_count("frames", frames, MIN_FRAMES)
    require_count("rings", rings)
    require_count("seed", seed, 0)
    require_type("overwrite", overwrite, bool, "True or False")
    shear_convention = convention_named(convention)
    require_known(noise, data.NOISE, f"noise {shown(noise)} is unknown")
    photons = PHOTON_ARRAYS * 4 * data.COUNTED_PIXELS * frames * (noise == "speckle")
    require_memory("a simulation", JAX_BYTES + ARRAYS * 8 * frames**2 + photons)
    case = case.over(frames)
    phi, time = np.tile(data.angles(angles), rings), case.frame_time * np.arange(frames)
    q = case.q * np.repeat(np.geomspace(0.5, 2, rings) if rings > 1 else 1.0, angles)
    contrast, offset = case.contrasts(phi), case.offsets(phi)
    truth = partial(point_of_scenario, case, time, shear_convention)

    def c2_of_bin(k: int) -> np.ndarray:
        bin = slice(k, k + 1)
        if case.model in MODELS:
            return predict(
                MODELS[case.model], case.parameters, time, q=q[bin], phi=phi[bin], gap=case.gap,
                contrast=contrast[bin], offset=offset[bin], convention=shear_convention.value,
            )[0]  # fmt: skip
        return c2_of_point(truth(), time, q[bin], phi[bin], contrast[bin], offset[bin])[0]

    def counted(k: int, counts: np.ndarray) -> np.ndarray:
        root = field_root(truth(), time, q[k : k + 1], phi[k : k + 1])
        rngs = (np.random.default_rng([seed, k, stream]) for stream in range(2))
        return counted_c2(root, contrast[k], counts, data.COUNTED_PIXELS, *rngs) + offset[k] - 1

    photons_of = {"counted": counted, "n_pixels": data.COUNTED_PIXELS} if noise == "speckle" else {}
    data.simulate(
        file, c2_of_bin, layout=layout, q=q, phi=phi, contrast=contrast, n_frames=frames,
        frame_time=case.frame_time, seed=seed, truth=case.truth(phi, shear_convention.value),
        overwrite=overwrite, **photons_of,
    )  # fmt: skip
    return case


def point_of_scenario(
    case: data.Scenario, time: Float[np.ndarray, " n"], convention: Convention
) -> TransportPoint:
    """Return the integrals of the rates of a simulated scan at its frames [s]."""
    t = positive_times(time, frame_spacing(time, convention))
    rates = true_rates(case.model, case.parameters, t, convention)
    assert rates is not None  # as the scenarios have them
    problem = Problem(LAMINAR_FLOW if "gamma_dot" in rates else STATIC, convention, case.gap)
    return point_of_rates(problem, rates, case.parameters.get(DIRECTION, 0.0), time)


def counted_c2(
    root: Float[np.ndarray, "t t"],
    contrast: float,
    counts: float | Float[np.ndarray, " t"],
    pixels: int,
    of_pattern: np.random.Generator,
    of_counts: np.random.Generator,
) -> Float[np.ndarray, "t t"]:
    """Return c2 of offset 1 from photons counted in independent pixels; counts: their mean of each frame."""
    n = len(root)
    modes = max(1, int(1 / contrast + 1e-9))
    spread, total, mean = np.sqrt(contrast * modes), np.zeros((n, n)), np.zeros(n)
    step = max(1, AT_ONCE // (2 * modes * n))
    for first in range(0, pixels, step):
        n_pixels = min(step, pixels - first)
        field = of_pattern.standard_normal((n_pixels * 2 * modes, n), np.float32) @ root
        intensity = 1 + spread * ((field**2).reshape(n_pixels, -1, n).mean(axis=1) - 1)
        photons = of_counts.poisson(counts * np.maximum(intensity, 0)).astype(np.float32)
        total += photons.T @ photons
        mean += photons.sum(axis=0)
    return total * pixels / np.outer(mean, mean)


def field_root(
    point: TransportPoint,
    time: Float[np.ndarray, " t"],
    q: Float[np.ndarray, " one"],
    phi: Float[np.ndarray, " one"],
) -> Float[np.ndarray, "t t"]:
    """Return the upper triangular R with RᵀR the correlation of the field of a bin."""
    pairs = point, time, q, phi, time[:, None], time[None, :]
    # the upper half on both sides: models are of pairs with t1 before t2
    g = np.triu(np.sqrt(np.clip(f_at(*pairs)[0], 0, 1)) * sign_at(*pairs)[0], 1)
    g += g.T
    np.fill_diagonal(g, 1.0)
    return np.linalg.cholesky(g + RIDGE * np.eye(len(g))).T
