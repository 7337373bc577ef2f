"""How far Grams are from those of the slow reference."""

import numpy as np

from tests import reference
from tests.synthetic import FLOW

EXACT = 1e-10
STATIC = np.array([20000.0, -0.4, 100.0])
CASES = [
    ("static", STATIC),
    ("flow", FLOW),
    ("flow that turns round", np.array([2500, -0.3, 100, 1e-3, -0.5, -2e-4, 17])),
    ("fast decay", np.array([2e5, -0.5, 100, 2e-3, -0.3, 0, -60])),
    ("many turns of the sinc", np.array([300, 0.1, 0, 2e-2, 0.1, 1e-3, 33])),
]


def reference_grams(scans, theta, min_lag=1):
    with np.errstate(over="ignore", invalid="ignore"):
        found = [
            reference.gram(theta, *part, min_lag=min_lag, convention=scans.convention)
            for part in scans.dense()
        ]
    return np.array([m for m, _ in found]), np.array([c for _, c in found])


def worst_error(found, moments):
    """max |ΔM_ij| / √(M_ii M_jj), as a matrix over i, j."""
    size = np.sqrt(np.einsum("kii->ki", moments))
    scale = size[:, :, None] * size[:, None, :]
    error = np.abs(found - moments)
    return np.where(error == 0, 0.0, error / np.where(scale > 0, scale, 1e-300)).max(0)


def assert_gram(gram, scans, theta, min_lag=1, tolerance=EXACT):
    moments, pairs = reference_grams(scans, theta, min_lag)
    np.testing.assert_array_equal(gram.pairs, pairs)
    off = worst_error(gram.moments, moments)
    assert (off <= tolerance).all(), off
