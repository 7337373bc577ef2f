"""A scan of three rings, each of its own q and truth."""

from dataclasses import replace

import numpy as np

from tests.synthetic import measured

Q = (0.003, 0.005, 0.008)
ANGLES = (0.0, 45.0, 90.0)


def three_rings(thetas, n=60, **options):
    """A scan of three rings, each with its own truth, and q that differs in its last digits."""
    rings = [
        measured(theta, n, ANGLES, q=q, sigma=0.01, seed=seed, **options)
        for seed, (q, theta) in enumerate(zip(Q, thetas, strict=True))
    ]
    parts = ("q", "phi", "contrast", "offset", "sigma_row", "c2")
    joined = {name: np.concatenate([getattr(ring, name) for ring in rings]) for name in parts}
    joined["q"] = joined["q"] * (1 + 1e-6 * np.tile([0, 1, -1], len(Q)))
    return replace(rings[0], **joined)
