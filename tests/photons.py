"""Photon counts from circular Gaussian fields: data whose noise and whose shear factor nobody put in.

In every layer of the gap a complex field loses its memory as exp(-½ q² ΔC) and turns by the phase
q·x of its layer, x = height·G along the flow. What the detector sees is the sum over layers, its
intensity the mean over M modes, its counts Poisson. The two-time correlation is taken over the
pixels of a bin, as a beamline does.
"""

import numpy as np

from tests import reference
from tests.synthetic import GAP, Q, Scans

MODES = 3
"""Of the detector: the contrast is 1/MODES."""
LAYERS = 16
PIXELS = 150
MEAN = 2.0
"""Counts per pixel and frame."""
FLOW = np.array([30000, -0.3, 1000, 3e-4, 0.2, 2e-5, 5.0])
"""Memory of some six frames; shear takes over along the flow."""
STILL = FLOW[:3]
OFFSETS = {"D_offset": 1000.0, "gamma_dot_t_offset": 2e-5}
"""Held: five seconds do not tell them from the amplitudes."""


def excess(f, contrast, mean):
    """Variance of a pair over that of pairs far apart, (1/mean + contrast)², f being theirs.

    c2 is the mean over pixels of x·y, x and y counts over the mean of the frame. To first order its
    error is (x - 1)(y - 1) - (c2 - 1)(x + y - 1), and Gaussian fields have all moments of x and y: the
    joint cumulants of two intensities are 1 and f in second order, 2f in third, 4f + 2f² in fourth,
    times the contrast for every factor but one; Poisson counts add 1/mean to the second moments.
    """
    b, m = contrast, 1 / mean
    product = b**3 * (4 * f + 2 * f**2) + b**2 * f**2 + 4 * f * b**2 * m + b * f * m**2
    normalised = -4 * b * f * (2 * f * b**2 + b * f * m) + 2 * b**2 * f**2 * (b + m + b * f)
    return 1 + (product + normalised) / (m + b) ** 2


def rates_integrated(theta, time):
    """C and G at all frames: the model's own J and shear rate, by the trapezoid rule."""
    dt = np.median(np.diff(time))
    t = np.where(time < dt / 2, dt / 2, time)
    C = reference.integral(theta[0] * t ** theta[1] + theta[2], time)
    if len(theta) == 3:
        return C, np.zeros_like(C)
    return C, reference.integral(theta[3] * t ** theta[4] + theta[5], time)


def intensities(rng, C, turn, pixels):
    """(pixel, frame): mean over modes of |E|², E summed over layers that turn by height·`turn`."""
    memory = np.exp(-0.5 * Q**2 * np.diff(C)).astype(np.float32)
    layers = LAYERS if np.abs(turn).max() > 0 else 1
    shape = (pixels * MODES, layers)
    # one height in each layer, wherever it is there: the mean over the gap is that of the whole gap
    height = (np.arange(layers) + rng.random(shape, np.float32)) / layers - np.float32(0.5)
    total = np.empty((len(C), pixels * MODES), np.complex64)
    field = noise(rng, shape)
    for i in range(len(C)):
        if i:
            old, new = memory[i - 1], np.sqrt(1 - memory[i - 1] ** 2)
            field = old * field + new * noise(rng, shape)
        phase = height * np.float32(turn[i])
        total[i] = np.einsum("pl,pl->p", field, np.exp(1j * phase))
    power = (np.abs(total) ** 2 / layers).reshape(len(C), pixels, MODES)
    return power.mean(axis=2).T


def noise(rng, shape):
    """Circular complex Gaussian numbers of unit power."""
    parts = rng.standard_normal((2, *shape), np.float32) * np.float32(np.sqrt(0.5))
    return parts[0] + 1j * parts[1]


def counted(c2, theta, time, q, phi, *, mean=MEAN, modes=MODES, pixels=PIXELS) -> Scans:
    """A scan of correlations of counts, with the noise of pairs far apart."""
    bins, n = c2.shape[:2]
    c2[:, np.tril(np.ones((n, n), bool))] = np.nan
    sigma = (1 / mean + 1 / modes) / np.sqrt(pixels)
    return Scans(
        theta, time, q, phi, np.full(bins, 1 / modes), np.ones(bins),
        np.full((bins, n), np.sqrt(sigma)), c2.astype(np.float32), "physical",
    )  # fmt: skip


def photographed(theta, n, phi, seed, *, dt=0.1, pixels=PIXELS, friedel=False) -> Scans:
    """A scan of counted photons; with `friedel` bins that are 180° apart see one speckle."""
    theta, phi = np.asarray(theta, float), np.asarray(phi, float)
    rng = np.random.default_rng(seed)
    time = dt * np.arange(n)
    C, G = rates_integrated(theta, time)
    c2, speckle = np.empty((len(phi), n, n)), {}
    for b, angle in enumerate(phi):
        axis = round(angle % 180, 9) if friedel else angle
        if axis not in speckle:
            cosine = np.cos(np.deg2rad(theta[6] - angle)) if len(theta) == 7 else 0.0
            speckle[axis] = intensities(rng, C, Q * GAP * cosine * G, pixels)
        counts = rng.poisson(MEAN * speckle[axis]).astype(float)
        counts /= counts.mean(axis=0)
        c2[b] = counts.T @ counts / pixels
    return counted(c2, theta, time, np.full(len(phi), Q), phi, pixels=pixels)
