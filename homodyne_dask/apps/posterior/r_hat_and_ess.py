"""Whether chains agree: the rank-normalized R-hat and the effective sample size (Vehtari et al. 2021)."""

import numpy as np
from jaxtyping import Float

MAX_R_HAT = 1.01
"""Above which draws are unreliable."""


def r_hat_and_ess(draws: Float[np.ndarray, "step chain u"]) -> tuple[float, float]:
    """Return the largest R-hat and the smallest effective sample size, of bulk and tails, of all u."""
    from arviz_stats.base.array import array_stats  # lazy: it loads for a second

    each = draws.transpose(2, 1, 0)
    with np.errstate(all="ignore"):  # NaN of chains that did not move
        r_hat = [array_stats.rhat(u) for u in each]
        bulk = [array_stats.ess(u) for u in each]
        tail = [array_stats.ess(u, method="tail", prob=(0.05, 0.95)) for u in each]
    return float(np.max(r_hat)), float(np.min([bulk, tail]))
