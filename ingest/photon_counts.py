"""Two-time correlations of counted photons: Gaussian speckle of partial coherence, pixel by pixel."""

import math

import numpy as np
from jaxtyping import Float, Float32


def counted_c2(
    field: Float[np.ndarray, "t t"],
    contrast: float,
    offset: float,
    counts: Float[np.ndarray, " t"],
    pixels: int,
    rng: np.random.Generator,
) -> Float32[np.ndarray, "t t"]:
    """Return c2 as beamlines compute it from photons counted in independent pixels.

    field: the correlation of the complex field, c2 being offset + contrast·field². counts: mean of each frame
    per pixel. offset stands for the normalization, which all pixels of a bin share. One speckle moves through
    all frames, so that pairs that share a frame or see one speckle have correlated noise.
    """
    values, vectors = np.linalg.eigh(field)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))).astype(np.float32).T
    intensity = np.zeros((pixels, len(field)), np.float32)
    for weight in mode_weights(contrast / offset):
        for _ in range(2):  # real and imaginary part
            part = rng.standard_normal(intensity.shape, np.float32) @ root
            intensity += np.float32(weight / 2) * part * part
    photons = rng.poisson(intensity * counts).astype(np.float32)
    photons /= photons.mean(axis=0)
    return np.float32(offset) * (photons.T @ photons) / np.float32(pixels)


def mode_weights(contrast: float) -> list[float]:
    """Return the shares of independent modes in the intensity: their sum is 1, that of squares the contrast.

    As few modes as there can be; all but the first have the same share.
    """
    modes = math.ceil(1 / contrast - 1e-9)
    if modes == 1:
        return [1.0]
    excess = math.sqrt(max((contrast - 1 / modes) * (modes - 1) / modes, 0.0))
    return [1 / modes + excess, *[1 / modes - excess / (modes - 1)] * (modes - 1)]
