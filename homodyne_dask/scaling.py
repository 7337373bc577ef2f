"""Contrast and offset eliminated: Grams become χ², gradient and Hessian of the physical parameters.

For any theta the best contrast and offset solve a small linear system (variable projection, Golub
and Pereyra 1973, in Kaufman's form), so the search runs over the physical parameters alone however
many bins there are. The linear parameters β of a group of bins enter as (offset_k, contrast_k) =
Z_k β: `individual` is a group per bin, `shared` is one group of all.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.errors import OptionError, nearest
from homodyne_dask.gram import Gram

MODES = ("individual", "shared")
_Z = [0, 2]
"""Where the columns of offset and contrast, 1 and f, stand among the moments."""
_RANK = 1e-10
"""Share of f's variance below which f counts as constant."""
_GONE = 1e-12
"""Weighted mean of f² below which nothing is left of f."""


@dataclass(frozen=True)
class Reduced:
    """The least-squares problem in the physical parameters alone, at one theta."""

    chisqr: float
    gradient: Float[np.ndarray, " p"]
    """Jᵀ W r, r = y - offset - contrast·f: minus half the derivative of χ²."""
    hessian: Float[np.ndarray, "p p"]
    """Gauss-Newton: Jᵀ W J with the linear parameters projected out."""
    rounding: float
    """100·ε·Σw(y - 1)²: differences of χ² below this are rounding."""
    ndata: int
    linear: int
    """Linear parameters the data determine."""
    contrast: Float[np.ndarray, " bin"]
    offset: Float[np.ndarray, " bin"]
    undetermined: Bool[np.ndarray, " bin"]
    """Bins whose f is constant or gone: contrast 0, nothing added to the Hessian."""
    chisqr_per_bin: Float[np.ndarray, " bin"]
    count: Float[np.ndarray, " bin"]
    bin_gradient: Float[np.ndarray, "bin p"]
    """Scores g_k: they sum to the gradient."""
    bin_hessian: Float[np.ndarray, "bin p p"]
    """Blocks H_k: they sum to the Hessian."""
    gram: Gram
    """What all this was made from."""

    @property
    def finite(self) -> bool:
        """Whether χ² and its derivatives are numbers."""
        parts = (self.chisqr, self.gradient, self.hessian)
        return all(bool(np.isfinite(part).all()) for part in parts)

    def variance(self, free: int) -> float:
        """Return s² = χ² over the degrees of freedom with `free` physical parameters, at least 1."""
        return self.chisqr / max(self.ndata - free - self.linear, 1)


def check_mode(mode: str) -> str:
    """Return the scaling mode; raises OptionError for another word."""
    if mode not in MODES:
        raise OptionError(f"scaling {mode!r} is unknown; {nearest(mode, MODES)}")
    return mode


def reduce(gram: Gram, mode: str) -> Reduced:
    """Return the reduced problem of all bins; raises nothing: not-finite sums stay not finite."""
    M = gram.moments
    used = gram.pairs > 0
    groups = M[:, None] if mode == "individual" else M[None, :]
    A = groups[..., _Z, :][..., :, _Z].sum(1)
    beta, determined = _solve(A, groups[..., 1, _Z].sum(1))
    beta, determined = _per_bin(beta, len(M)), _per_bin(determined, len(M))
    offset, contrast = 1 + beta[:, 0], beta[:, 1]
    with np.errstate(invalid="ignore", over="ignore"):
        chisqr_per_bin = _chisqr(M, beta)
        gradient, hessian = _project(M, groups, beta, determined)
    return Reduced(
        chisqr=float(chisqr_per_bin.sum()),
        gradient=gradient.sum(0),
        hessian=hessian.sum(0),
        rounding=float(100 * np.finfo(float).eps * M[:, 1, 1].sum()),
        ndata=int(gram.pairs.sum()),
        linear=_linear(used, determined, mode),
        contrast=np.where(used, contrast, np.nan),
        offset=np.where(used, offset, np.nan),
        undetermined=used & ~determined,
        chisqr_per_bin=chisqr_per_bin,
        count=gram.pairs.astype(float),
        bin_gradient=gradient,
        bin_hessian=hessian,
        gram=gram,
    )


def _linear(used: np.ndarray, determined: np.ndarray, mode: str) -> int:
    per_bin = used.astype(int) + (used & determined)
    return int(per_bin.sum() if mode == "individual" else per_bin.max(initial=0))


def _per_bin(values: np.ndarray, bins: int) -> np.ndarray:
    """Return group values repeated for each bin of the group."""
    return np.repeat(values, bins // len(values), axis=0)


def _solve(
    A: Float[np.ndarray, "group 2 2"], b: Float[np.ndarray, "group 2"]
) -> tuple[Float[np.ndarray, "group 2"], Bool[np.ndarray, " group"]]:
    """Return (offset - 1, contrast) of each group and whether its contrast is determined."""
    w, wf, wff = A[:, 0, 0], A[:, 0, 1], A[:, 1, 1]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        mean_f, mean_y = wf / w, b[:, 0] / w
        variance = wff - wf * mean_f
        determined = (variance > _RANK * wff) & (wff > _GONE * w)
        contrast = np.where(determined, (b[:, 1] - b[:, 0] * mean_f) / variance, 0.0)
        offset = mean_y - contrast * np.where(determined, mean_f, 0.0)
    offset = np.where(w > 0, offset, 0.0)
    # a sum that is not finite must not pass for an undetermined bin
    spoilt = ~np.isfinite(A).all((1, 2))
    return np.where(spoilt[:, None], np.nan, np.stack([offset, contrast], axis=1)), determined


def _chisqr(M: Float[np.ndarray, "bin k k"], beta: Float[np.ndarray, "bin 2"]) -> np.ndarray:
    """Return Σ w (y - offset - contrast f)² of every bin."""
    x = np.stack([-beta[:, 0], np.ones(len(M)), -beta[:, 1]], axis=1)
    return np.einsum("ka,kab,kb->k", x, M[:, :3, :3], x)


def _project(
    M: Float[np.ndarray, "bin k k"],
    groups: Float[np.ndarray, "group member k k"],
    beta: Float[np.ndarray, "bin 2"],
    determined: Bool[np.ndarray, " bin"],
) -> tuple[Float[np.ndarray, "bin p"], Float[np.ndarray, "bin p p"]]:
    """Return the scores g_k and blocks H_k of the physical parameters, contrast and offset free.

    J_k = contrast_k d_k. With P = A⁻¹B of the group, g_k = contrast_k dᵀWr - Pᵀ ZᵀWr and
    H_k = JᵀWJ - JᵀWZ P - PᵀZᵀWJ + PᵀZᵀWZ P, the Gram of the projected columns.
    """
    bins, p = len(M), M.shape[1] - 3
    contrast = np.where(determined, beta[:, 1], 0.0)
    x = np.stack([-beta[:, 0], np.ones(bins), -beta[:, 1]], axis=1)
    score = np.einsum("ka,kab->kb", x, M[:, :3, :])  # Xᵀ W r
    A_k = M[:, _Z][:, :, _Z]
    B_k = M[:, _Z, 3:] * contrast[:, None, None]
    D_k = M[:, 3:, 3:] * (contrast**2)[:, None, None]
    shape = groups.shape[:2]
    A = A_k.reshape(*shape, 2, 2).sum(1)
    B = B_k.reshape(*shape, 2, p).sum(1)
    P = _per_bin(_inverse_times(A, B), bins)
    g = contrast[:, None] * score[:, 3:] - np.einsum("kzp,kz->kp", P, score[:, _Z])
    cross = np.einsum("kzp,kzr->kpr", B_k, P)
    H = D_k - cross - cross.transpose(0, 2, 1) + np.einsum("kzp,kzy,kyr->kpr", P, A_k, P)
    on = determined[:, None] & (np.abs(M[:, 0, 0]) > 0)[:, None]
    finite = np.isfinite(M).all((1, 2))
    on = on | ~finite[:, None]
    return np.where(on, g, 0.0), np.where(on[:, :, None], H, 0.0)


def _inverse_times(
    A: Float[np.ndarray, "group 2 2"], B: Float[np.ndarray, "group 2 p"]
) -> Float[np.ndarray, "group 2 p"]:
    """Return A⁻¹B by elimination of the offset first; singular groups give values never used."""
    w, wf, wff = A[:, 0, 0], A[:, 0, 1], A[:, 1, 1]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        mean_f = wf / w
        lower = (B[:, 1] - mean_f[:, None] * B[:, 0]) / (wff - wf * mean_f)[:, None]
        upper = B[:, 0] / w[:, None] - mean_f[:, None] * lower
    return np.nan_to_num(np.stack([upper, lower], axis=1), nan=0.0, posinf=0.0, neginf=0.0)
