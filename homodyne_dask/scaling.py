"""Contrast and offset eliminated: Grams become χ², gradient and Hessian of the physical parameters.

For any theta the best contrast and offset solve a small linear system (variable projection, Golub
and Pereyra 1973, in Kaufman's form), so the search runs over the physical parameters alone however
many bins there are. The linear parameters of a group of bins enter as (offset_k - 1, contrast_k) =
t_k·β, t_k a row of the columns of `ties`: `individual` is a group per bin with t_k = 1, the other
modes are one group of all; in `fixed` nothing is eliminated.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.errors import OptionError
from homodyne_dask.gram import Gram
from homodyne_dask.ties import Scaling, fourier_columns, plain_mode

Z = [0, 2]
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
    projection: Float[np.ndarray, "bin 2 p"]
    """How (offset, contrast) of a bin follow theta: they change by minus this times its change."""
    ties: Float[np.ndarray, "bin m"]
    """Columns that tie (offset - 1, contrast) to what is eliminated of the group; none when fixed."""
    inverse: Float[np.ndarray, "group 2m 2m"]
    """(ZᵀWZ)⁻¹ of the eliminated parameters of each group of bins, those of offset first."""
    beta: Float[np.ndarray, "bin 2"]
    """(offset - 1, contrast) to the last bit; numbers for bins without pairs, too."""
    slope: Float[np.ndarray, " bin"]
    """Normal equations over the Gram: 1, but with a loss the slope of its influence over its weight."""
    move: Float[np.ndarray, "bin 2"] | None = None
    """How (offset, contrast) of a bin go on at this theta, where a loss has them carried along."""
    remaining: float = 0.0
    """What χ² would lose by that."""
    noise: float | None = None
    """With a loss: the variance of white noise over what the inverse Hessian says."""

    @property
    def finite(self) -> bool:
        """Whether χ² and its derivatives are numbers."""
        parts = (self.chisqr, self.gradient, self.hessian)
        return all(bool(np.isfinite(part).all()) for part in parts)

    def variance(self, free: int) -> float:
        """Return s² = χ² over the degrees of freedom with `free` physical parameters.

        With a loss: the variance of a parameter over its entry of the inverse Hessian.
        """
        total = self.chisqr if self.noise is None else self.ndata * self.noise
        return total / self.freedom(free)

    def freedom(self, free: int) -> int:
        """Return the degrees of freedom with `free` physical parameters, at least 1."""
        return max(self.ndata - free - self.linear, 1)

    def followed(
        self, step: Float[np.ndarray, " p"], damping: float
    ) -> Float[np.ndarray, "bin 2"] | None:
        """Return (offset - 1, contrast) to try beside a step of theta; None where nothing is carried."""
        if self.move is None:
            return None
        return self.beta + self.move / (1 + damping) - self.projection @ step

    def gained(self, step: Float[np.ndarray, " p"], damping: float) -> float:
        """Return what the quadratic model has χ² lose by a step, what is carried following."""
        gain = 2 * step @ self.gradient - step @ self.hessian @ step
        return float(gain + self.remaining * (1 - (1 - 1 / (1 + damping)) ** 2))


def reduce(gram: Gram, scaling: Scaling | str) -> Reduced:
    """Return the reduced problem of all bins.

    scaling: a value, or the name of a mode that needs nothing more: 'individual' or 'shared'.
    Not-finite sums stay not finite. Raises OptionError for another name.
    """
    M = gram.moments
    if isinstance(scaling, str):
        scaling = _named(scaling, len(M))
    used = gram.pairs > 0
    A_k, b_k = M[:, Z][:, :, Z], M[:, 1, Z]
    ties, groups = tied_groups(scaling, len(M))
    linear = eliminated(A_k, ties, groups)
    if scaling.given is None:
        beta, determined = linear.solved(b_k), np.repeat(linear.known, len(M) // groups)
    else:
        beta, determined = scaling.given, np.ones(len(M), bool)
    offset, contrast = 1 + beta[:, 0], beta[:, 1]
    with np.errstate(invalid="ignore", over="ignore"):
        chisqr_per_bin = _chisqr(M, beta)
        slope = np.where(determined, contrast, 0.0)  # of c2 by f
        P = linear.solved(M[:, Z, 3:] * slope[:, None, None])
        gradient, hessian = projected(M, beta, slope, P, determined)
    return Reduced(
        chisqr=float(chisqr_per_bin.sum()),
        gradient=gradient.sum(0),
        hessian=hessian.sum(0),
        rounding=float(100 * np.finfo(float).eps * M[:, 1, 1].sum()),
        ndata=int(gram.pairs.sum()),
        linear=linear.rank,
        contrast=np.where(used, contrast, np.nan),
        offset=np.where(used, offset, np.nan),
        undetermined=used & ~determined,
        chisqr_per_bin=chisqr_per_bin,
        count=gram.pairs.astype(float),
        bin_gradient=gradient,
        bin_hessian=hessian,
        gram=gram,
        projection=P,
        ties=ties,
        inverse=linear.inverse(),
        beta=beta,
        slope=np.ones(len(M)),
    )


def _named(mode: str, bins: int) -> Scaling:
    plain, note = plain_mode(mode, bins)
    if plain == "individual":
        return Scaling(note=note)
    if plain == "shared":
        return Scaling(plain, fourier_columns(np.zeros(bins), 0), note=note)
    raise OptionError(f"scaling {mode!r} needs angles or values: make it with scaling_of")


def tied_groups(scaling: Scaling, bins: int) -> tuple[Float[np.ndarray, "bin m"], int]:
    """Return the columns that tie the bins, and how many groups of bins there are."""
    if scaling.given is not None:
        return np.zeros((bins, 0)), 1
    if scaling.columns is None:
        return np.ones((bins, 1)), bins
    return scaling.columns, 1


class Linear(NamedTuple):
    """The elimination of offset, then contrast, from the normal equations of each group."""

    ties: Float[np.ndarray, "group member m"]
    offset: Float[np.ndarray, "group m m"]
    """Inverse of the offset block."""
    mean: Float[np.ndarray, "group m m"]
    """That times the mixed block: the mean of f, where m = 1."""
    contrast: Float[np.ndarray, "group m m"]
    """Inverse of what the offset leaves of the contrast block: of f's variance."""
    known: Bool[np.ndarray, " group"]
    """Groups with any contrast."""
    rank: int
    """Linear parameters determined."""
    spoilt: Bool[np.ndarray, " group"]
    """Groups with sums that are not finite: they must not pass for undetermined ones."""

    def solved(self, per_bin: Float[np.ndarray, "bin 2 *n"]) -> Float[np.ndarray, "bin 2 *n"]:
        """Return Z_k (ZᵀWZ)⁻¹ Σ Z_kᵀ b_k of every bin: what the group makes of right-hand sides b_k."""
        groups, members, _ = self.ties.shape
        shape = per_bin.shape
        b = per_bin.reshape(groups, members, 2, -1)
        with np.errstate(invalid="ignore", over="ignore"):
            upper, lower = np.moveaxis(np.einsum("gkm,gkzn->gzmn", self.ties, b), 1, 0)
            lower = self.contrast @ (lower - np.swapaxes(self.mean, 1, 2) @ upper)
            upper = self.offset @ upper - self.mean @ lower
        both = np.stack([upper, lower], axis=1)
        both[self.spoilt] = np.nan
        return np.einsum("gkm,gzmn->gkzn", self.ties, both).reshape(shape)

    def inverse(self) -> Float[np.ndarray, "group 2m 2m"]:
        """Return the inverse of the whole normal matrix of each group."""
        corner = -self.mean @ self.contrast
        upper = self.offset - corner @ np.swapaxes(self.mean, 1, 2)
        return np.block([[upper, corner], [np.swapaxes(corner, 1, 2), self.contrast]])


def eliminated(
    A_k: Float[np.ndarray, "bin 2 2"], ties: Float[np.ndarray, "bin m"], groups: int
) -> Linear:
    """Return the elimination of the linear parameters of every group."""
    each = len(A_k) // groups
    ties = ties.reshape(groups, each, ties.shape[1])
    members = A_k.reshape(groups, each, 2, 2)
    spoilt = ~np.isfinite(members).all((1, 2, 3))
    members = np.where(spoilt[:, None, None, None], np.eye(2), members)
    A = np.einsum("gka,gkb,gkzy->gzyab", ties, ties, members)
    w, wf, wff = A[:, 0, 0], A[:, 0, 1], A[:, 1, 1]
    offset, of_offset = _inverse(w, np.diagonal(w, axis1=1, axis2=2), 1e-13)
    mean = offset @ wf
    size = np.diagonal(wff, axis1=1, axis2=2)
    size = np.where(size > _GONE * np.diagonal(w, axis1=1, axis2=2), size, 0.0)
    contrast, of_contrast = _inverse(wff - np.swapaxes(wf, 1, 2) @ mean, size, _RANK)
    known = (of_contrast > 0) | spoilt
    return Linear(
        ties, offset, mean, contrast, known, int(of_offset.sum() + of_contrast.sum()), spoilt
    )


def _inverse(
    S: Float[np.ndarray, "group m m"], size: Float[np.ndarray, "group m"], least: float
) -> tuple[Float[np.ndarray, "group m m"], Float[np.ndarray, " group"]]:
    """Return the inverse of S on what it determines, and its rank.

    That is where S, in units of `size`, has eigenvalues above `least`.
    """
    unit = np.where(size > 0, 1 / np.sqrt(np.where(size > 0, size, 1.0)), 0.0)
    values, vectors = np.linalg.eigh(S * unit[:, :, None] * unit[:, None, :])
    known = values > least
    half = vectors * unit[:, :, None] / np.sqrt(np.where(known, values, np.inf))[:, None, :]
    return half @ np.swapaxes(half, 1, 2), known.sum(1)


def _chisqr(M: Float[np.ndarray, "bin k k"], beta: Float[np.ndarray, "bin 2"]) -> np.ndarray:
    """Return Σ w (y - offset - contrast f)² of every bin."""
    x = np.stack([-beta[:, 0], np.ones(len(M)), -beta[:, 1]], axis=1)
    return np.einsum("ka,kab,kb->k", x, M[:, :3, :3], x)


def projected(
    M: Float[np.ndarray, "bin k k"],
    beta: Float[np.ndarray, "bin 2"],
    contrast: Float[np.ndarray, " bin"],
    P: Float[np.ndarray, "bin 2 p"],
    determined: Bool[np.ndarray, " bin"],
) -> tuple[Float[np.ndarray, "bin p"], Float[np.ndarray, "bin p p"]]:
    """Return the scores g_k and blocks H_k of the physical parameters, contrast and offset free.

    J_k = contrast_k d_k, r at beta. With P = A⁻¹B of the group, g_k = contrast_k dᵀWr - Pᵀ ZᵀWr and
    H_k = JᵀWJ - JᵀWZ P - PᵀZᵀWJ + PᵀZᵀWZ P, the Gram of the projected columns.
    """
    x = np.stack([-beta[:, 0], np.ones(len(M)), -beta[:, 1]], axis=1)
    score = np.einsum("ka,kab->kb", x, M[:, :3, :])  # Xᵀ W r
    A_k = M[:, Z][:, :, Z]
    B_k = M[:, Z, 3:] * contrast[:, None, None]
    D_k = M[:, 3:, 3:] * (contrast**2)[:, None, None]
    g = contrast[:, None] * score[:, 3:] - np.einsum("kzp,kz->kp", P, score[:, Z])
    cross = np.einsum("kzp,kzr->kpr", B_k, P)
    H = D_k - cross - cross.transpose(0, 2, 1) + np.einsum("kzp,kzy,kyr->kpr", P, A_k, P)
    on = determined[:, None] & (np.abs(M[:, 0, 0]) > 0)[:, None]
    finite = np.isfinite(M).all((1, 2))
    on = on | ~finite[:, None]
    return np.where(on, g, 0.0), np.where(on[:, :, None], H, 0.0)
