"""Scaling modes: how contrast and offset of the bins depend on each other; their bounds and Gaussian priors.

A prior adds one row to the normal equations, as a measurement does. With bounds the elimination is a
least-squares problem in a rectangle, solved exactly along its edges.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.errors import OptionError, require_known, shown
from homodyne_dask.solver.array_shapes import BinNumbers, LinearParams, Moments, PerBin

Limits = Mapping[str, tuple[float, float]]
"""Of contrast or offset: bounds, a prior, or both, by these names."""


@dataclass(frozen=True)
class ScalingPrior:
    """Bounds and priors of (offset - 1, contrast) of every bin, or of the shared pair."""

    lower: Float[np.ndarray, "2"]
    upper: Float[np.ndarray, "2"]
    mean: Float[np.ndarray, "2"]
    weight: Float[np.ndarray, "2"]
    """1/sd², 0 where there is no prior."""

    def moments(self, share: PerBin, k: int) -> Moments:
        total = np.zeros((k, k))
        for column, mean, weight in zip((0, 2), self.mean, self.weight, strict=True):
            row = np.zeros(k)
            row[1], row[column] = mean, 1.0
            total += weight * np.outer(row, row)
        return share[:, None, None] * total

    def inside(self, linear_params: LinearParams) -> LinearParams:
        return np.clip(linear_params, self.lower, self.upper)

    def active(
        self, linear_params: Float[np.ndarray, "group 2"], gradient: Float[np.ndarray, "group 2"]
    ) -> Bool[np.ndarray, "group 2"]:
        below, above = linear_params <= self.lower, linear_params >= self.upper
        return below & (gradient < 0) | above & (gradient > 0)

    def solved(
        self,
        A: Float[np.ndarray, "group 2 2"],
        b: Float[np.ndarray, "group 2"],
        linear_params: Float[np.ndarray, "group 2"],
    ) -> tuple[Float[np.ndarray, "group 2"], Bool[np.ndarray, "group 2"]]:
        """Return the minimum of xᵀAx - 2bᵀx in the bounds, and what is at one; linear_params: without."""
        linear_params, at_bound = linear_params.copy(), np.zeros(linear_params.shape, bool)
        outside = (self.inside(linear_params) != linear_params).any(1)
        outside &= np.isfinite(linear_params).all(1)
        for group in np.flatnonzero(outside):
            linear_params[group] = min(
                self._edges(A[group], b[group]), key=lambda x: x @ A[group] @ x - 2 * b[group] @ x
            )
            x = linear_params[group]
            at_bound[group] = (x == self.lower) | (x == self.upper)
        return linear_params, at_bound

    def _edges(self, A: Float[np.ndarray, "2 2"], b: Float[np.ndarray, "2"]) -> list[np.ndarray]:
        minima = []
        for fixed, bound in product((0, 1), (self.lower, self.upper)):
            if np.isfinite(bound[fixed]):
                x, free = bound.copy(), 1 - fixed
                right, curvature = b[free] - A[free, fixed] * x[fixed], A[free, free]
                x[free] = right / curvature if curvature else 0
                minima.append(self.inside(x))
        return minima


def scaling_prior(contrast: Limits, offset: Limits) -> ScalingPrior | None:
    """Return bounds (low, high) and priors (mean, deviation) of contrast and offset; None without."""
    if not (contrast or offset):
        return None
    limits, priors = [], []
    for name, limit, shift in (("offset", offset, 1.0), ("contrast", contrast, 0.0)):
        low, high = limit.get("bounds", (-np.inf, np.inf))
        if not low < high:
            raise OptionError(
                f"bounds of {name}: {low:g} is not below {high:g}; to fix the value, use scaling 'fixed'"
            )
        mean, deviation = limit.get("prior", (shift, np.inf))
        if "prior" in limit and not (np.isfinite(mean) and 0 < deviation < np.inf):
            raise OptionError(
                f"prior of {name} = ({mean:g}, {deviation:g}) is not a prior: give a mean and a positive "
                f"standard deviation"
            )
        limits.append((low - shift, high - shift))
        priors.append((mean - shift, deviation**-2.0))
    return ScalingPrior(*np.array(limits).T, *np.array(priors).T)


ALIKE = ("scans", "rings", "angles")
"""Modes in which bins that are alike share contrast and offset."""
MODES = ("individual", "shared", "fourier1", "fourier2", "fourier3", *ALIKE, "fixed")
LINEAR = ("contrast", "offset")
_MIN_SINGULAR_VALUE = 1e-9
"""Relative singular value of a Fourier series' columns below which the angles do not determine one."""


@dataclass(frozen=True)
class Scaling:
    """(offset_k - 1, contrast_k) of bin k: fixed values, or columns_k times linear parameters."""

    mode: str = "individual"
    columns: Float[np.ndarray, "bin m"] | None = None
    """Columns of the parameters that bins share; None where each bin has its own, or they are fixed."""
    fixed_params: LinearParams | None = None
    """(offset - 1, contrast)."""
    prior: ScalingPrior | None = None
    """Bounds and priors of contrast and offset; in `individual` and `shared` only."""

    @property
    def mode_for_initial_values(self) -> str:
        """The mode in which initial values are searched: one that needs neither angles nor values."""
        return "shared" if self.mode == "shared" else "individual"


def scaling_of(
    mode: str,
    phi: PerBin,
    contrast: float | Sequence[float] | None = None,
    offset: float | Sequence[float] | None = None,
    prior: ScalingPrior | None = None,
    alike: BinNumbers | None = None,
) -> Scaling:
    """Return the scaling of bins at angles phi [degree].

    alike: a number for each bin; in the modes of ALIKE bins of one number share contrast and offset.
    contrast and offset, one value or one per bin, belong to 'fixed' alone; a prior to 'individual', where
    it holds for every bin, and to 'shared'. Raises OptionError for unknown modes and values that are
    missing or too many.
    """
    require_known(mode, MODES, f"scaling {mode!r} is unknown")
    if prior is not None and mode not in ("individual", "shared"):
        raise OptionError(
            f"bounds and priors of contrast and offset do not apply to scaling {mode!r}: "
            f"leave them out, or use 'individual' or 'shared'"
        )
    values = {"contrast": contrast, "offset": offset}
    if mode == "fixed":
        fixed = {name: _per_bin(name, value, len(phi)) for name, value in values.items()}
        return Scaling(
            mode, fixed_params=np.stack([fixed["offset"] - 1, fixed["contrast"]], axis=1)
        )
    for name, value in values.items():
        if value is not None:
            raise OptionError(f"{name} is given, but scaling is {mode!r}: use scaling 'fixed'")
    if mode == "individual":
        return Scaling(prior=prior)
    if mode in ALIKE:
        return _scaling_of_alike(mode, alike)
    order = 0 if mode == "shared" else int(mode[-1])
    if order and not np.isfinite(phi).all():
        raise OptionError(
            f"scaling {mode!r} needs φ, which is unknown for some bins: select only bins with a known φ, "
            f"or use 'individual'"
        )
    return Scaling(mode, fourier_columns(phi, order), prior=prior)


def _scaling_of_alike(mode: str, alike: BinNumbers | None) -> Scaling:
    if alike is not None and len(np.unique(alike)) < len(alike):
        # a column for each number, 1 at the bins that have it
        return Scaling(mode, (alike[:, None] == np.unique(alike)).astype(float))
    if mode == "scans":
        raise OptionError(
            "scaling 'scans' shares contrast and offset between repeated scans, but no "
            "selected bin is in two scans: use 'individual'"
        )
    return Scaling()  # each has one bin


def fourier_columns(phi: PerBin, order: int) -> Float[np.ndarray, "bin m"]:
    """Return columns that span 1, cos φ, sin φ ... cos nφ, sin nφ at the angles: at most one per bin."""
    angle = np.deg2rad(phi)[:, None] * np.arange(1, order + 1)
    series = np.concatenate([np.ones((len(phi), 1)), np.cos(angle), np.sin(angle)], axis=1)
    if order == 0:
        return series
    U, size, _ = np.linalg.svd(series, full_matrices=False)
    return U[:, size > _MIN_SINGULAR_VALUE * size[0]] * np.sqrt(len(phi))


def _per_bin(name: str, value: float | Sequence[float] | None, bins: int) -> np.ndarray:
    if value is None:
        raise OptionError(f"scaling 'fixed' needs {name}: one number, or one for each bin")
    numbers = np.atleast_1d(np.asarray(value, float))
    if len(numbers) not in (1, bins):
        raise OptionError(
            f"{name} = {shown(value)} does not match the {bins} selected bins: give one number, or {bins}"
        )
    return np.broadcast_to(numbers, bins).copy()
