"""Scaling modes: how contrast and offset of the bins depend on each other, their bounds and priors.

A prior adds one row to the normal equations, as a measurement does. With bounds the elimination is a
least-squares problem in a rectangle, solved exactly along its edges.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.errors import OptionError, nearest, shown

Pair = tuple[float, float] | None


@dataclass(frozen=True)
class ScalingPrior:
    """Bounds and priors of (offset - 1, contrast) of every bin, or of the shared pair."""

    lower: Float[np.ndarray, "2"]
    upper: Float[np.ndarray, "2"]
    mean: Float[np.ndarray, "2"]
    weight: Float[np.ndarray, "2"]
    """1/sd², 0 where there is no prior."""

    def moments(self, each: Float[np.ndarray, " bin"], k: int) -> Float[np.ndarray, "bin k k"]:
        """Return the moments of the priors over 1, y - 1, f, ...; each: the share of them in each bin."""
        total = np.zeros((k, k))
        for column, mean, weight in zip((0, 2), self.mean, self.weight, strict=True):
            row = np.zeros(k)
            row[1], row[column] = mean, 1.0
            total += weight * np.outer(row, row)
        return each[:, None, None] * total

    def inside(self, linear_params: Float[np.ndarray, "bin 2"]) -> Float[np.ndarray, "bin 2"]:
        """Return (offset - 1, contrast) with each value clipped into its bounds."""
        return np.clip(linear_params, self.lower, self.upper)

    def active(
        self, linear_params: Float[np.ndarray, "group 2"], gradient: Float[np.ndarray, "group 2"]
    ) -> Bool[np.ndarray, "group 2"]:
        """Return which values are at a bound with the gradient pointing outwards."""
        below, above = linear_params <= self.lower, linear_params >= self.upper
        return below & (gradient < 0) | above & (gradient > 0)

    def solved(
        self,
        A: Float[np.ndarray, "group 2 2"],
        b: Float[np.ndarray, "group 2"],
        linear_params: Float[np.ndarray, "group 2"],
    ) -> tuple[Float[np.ndarray, "group 2"], Bool[np.ndarray, "group 2"]]:
        """Return the minimum of xᵀAx - 2bᵀx inside the bounds, and which values are at a bound.

        linear_params: the minimum without bounds.
        """
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
        """Return the minimum on every edge of the rectangle."""
        minima = []
        for one, bound in product((0, 1), (self.lower, self.upper)):
            other = 1 - one
            if not np.isfinite(bound[one]):
                continue
            x = np.empty(2)
            x[one] = bound[one]
            x[other] = (
                (b[other] - A[other, one] * x[one]) / A[other, other] if A[other, other] else 0
            )
            x[other] = np.clip(x[other], self.lower[other], self.upper[other])
            minima.append(x)
        return minima


def scaling_prior(
    contrast_bounds: Pair = None,
    offset_bounds: Pair = None,
    contrast_prior: Pair = None,
    offset_prior: Pair = None,
) -> ScalingPrior | None:
    """Return bounds (low, high) and priors (mean, standard deviation) as one value; None without any.

    Raises OptionError for what is not a pair of numbers, empty bounds and deviations that are not
    positive.
    """
    pairs = contrast_bounds, offset_bounds, contrast_prior, offset_prior
    if all(pair is None for pair in pairs):
        return None
    limits = [
        _bounds(name, pair) - shift
        for name, pair, shift in (
            ("offset_bounds", offset_bounds, 1.0), ("contrast_bounds", contrast_bounds, 0.0)
        )
    ]  # fmt: skip
    priors = [
        _prior(name, pair, shift)
        for name, pair, shift in (
            ("offset_prior", offset_prior, 1.0), ("contrast_prior", contrast_prior, 0.0)
        )
    ]  # fmt: skip
    return ScalingPrior(*np.array(limits).T, *np.array(priors).T)


def _bounds(name: str, pair: Any) -> Float[np.ndarray, "2"]:
    if pair is None:
        return np.array([-np.inf, np.inf])
    low, high = _numbers(name, pair, "low and high")
    if not low < high:
        raise OptionError(
            f"{name}: {low:g} is not below {high:g}; to fix the value use scaling 'fixed'"
        )
    return np.array([low, high])


def _prior(name: str, pair: Any, shift: float) -> tuple[float, float]:
    if pair is None:
        return 0.0, 0.0
    mean, deviation = _numbers(name, pair, "mean and standard deviation")
    if not (np.isfinite(mean) and 0 < deviation < np.inf):
        raise OptionError(
            f"{name} = ({mean:g}, {deviation:g}) is no prior: give a mean and a positive standard "
            f"deviation"
        )
    return mean - shift, deviation**-2.0


def _numbers(name: str, pair: Any, what: str) -> tuple[float, float]:
    try:
        first, second = (float(number) for number in pair)
    except (TypeError, ValueError):
        raise OptionError(f"{name} = {shown(pair)} is not two numbers: give {what}") from None
    return first, second


MODES = ("individual", "shared", "fourier1", "fourier2", "fourier3", "fixed")
_ALIASES = {"fourier": "fourier2"}
_HOMODYNE_MODES = {
    "constant": (
        "individual",
        "homodyne's 'constant' freezes estimates of each angle; here contrast and offset of each "
        "angle are eliminated exactly ('individual'); to freeze them use 'fixed'",
    ),
    "auto": ("shared", "homodyne's 'auto' means one contrast and offset for 3 angles or more"),
    "averaged": ("shared", "homodyne's 'averaged' is 'shared' here"),
    "auto_averaged": ("shared", "homodyne's 'auto_averaged' is 'shared' here"),
    "constant_averaged": (
        "shared",
        "homodyne's 'constant_averaged' freezes an average; here one contrast and offset for all "
        "angles are eliminated exactly ('shared')",
    ),
}
_MIN_SINGULAR_VALUE = 1e-9
"""Relative singular value of a Fourier series' columns below which the angles do not determine one."""


@dataclass(frozen=True)
class Scaling:
    """(offset_k - 1, contrast_k) of bin k: fixed values, or columns_k times linear parameters."""

    mode: str = "individual"
    columns: Float[np.ndarray, "bin m"] | None = None
    """Columns of the parameters that bins share; None where each bin has its own, or they are fixed."""
    fixed_params: Float[np.ndarray, "bin 2"] | None = None
    """(offset - 1, contrast) where they are fixed."""
    note: str = ""
    """The translation of a mode of homodyne, as a sentence."""
    prior: ScalingPrior | None = None
    """Bounds and priors of contrast and offset; in `individual` and `shared` only."""

    @property
    def mode_for_initial_values(self) -> str:
        """The mode in which initial values are searched: one that needs neither angles nor values."""
        return "shared" if self.mode == "shared" else "individual"


def plain_mode(mode: str, bins: int = 3) -> tuple[str, str]:
    """Return the mode of a name, and a note where it is one of homodyne's.

    Raises OptionError for an unknown name.
    """
    if mode in _HOMODYNE_MODES:
        plain, note = _HOMODYNE_MODES[mode]
        if mode == "auto" and bins < 3:
            return "individual", "homodyne's 'auto' means 'individual' for fewer than 3 angles"
        return plain, note
    mode = _ALIASES.get(mode, mode)
    if mode not in MODES:
        known = (*MODES, *_ALIASES, *_HOMODYNE_MODES)
        raise OptionError(f"scaling {mode!r} is unknown; {nearest(mode, known)}")
    return mode, ""


def scaling_of(
    mode: str,
    phi: Float[np.ndarray, " bin"],
    contrast: float | Sequence[float] | None = None,
    offset: float | Sequence[float] | None = None,
    prior: ScalingPrior | None = None,
) -> Scaling:
    """Return the scaling of bins at angles phi [degree].

    contrast and offset, one value or one per bin, belong to 'fixed' and to no other mode; a prior
    to 'individual', where it holds for every bin, and to 'shared'. Raises OptionError for unknown
    modes and for values that are missing, too many or not numbers.
    """
    plain, note = plain_mode(mode, len(phi))
    if prior is not None and plain not in ("individual", "shared"):
        raise OptionError(
            f"bounds and priors of contrast and offset do not apply to scaling {mode!r}: "
            f"leave them out, or use 'individual' or 'shared'"
        )
    values = {"contrast": contrast, "offset": offset}
    if plain != "fixed":
        for name, value in values.items():
            if value is not None:
                raise OptionError(f"{name} is given, but scaling is {mode!r}: use scaling 'fixed'")
        if plain == "individual":
            return Scaling(note=note, prior=prior)
        order = 0 if plain == "shared" else int(plain[-1])
        if order and not np.isfinite(phi).all():
            raise OptionError(f"scaling {mode!r} needs φ, and it is unknown for some bins")
        return Scaling(plain, fourier_columns(phi, order), note=note, prior=prior)
    fixed = {name: _per_bin(name, value, len(phi)) for name, value in values.items()}
    return Scaling(plain, fixed_params=np.stack([fixed["offset"] - 1, fixed["contrast"]], axis=1))


def scaling_named(mode: str, bins: int) -> Scaling:
    """Return the scaling of a mode that needs no angles or values: 'individual' or 'shared'.

    Raises OptionError for another name.
    """
    plain, note = plain_mode(mode, bins)
    if plain == "individual":
        return Scaling(note=note)
    if plain == "shared":
        return Scaling(plain, fourier_columns(np.zeros(bins), 0), note=note)
    raise OptionError(f"scaling {mode!r} needs angles or values: make it with scaling_of")


def fourier_columns(phi: Float[np.ndarray, " bin"], order: int) -> Float[np.ndarray, "bin m"]:
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
    try:
        numbers = np.atleast_1d(np.asarray(value, float))
    except (TypeError, ValueError):
        raise OptionError(f"{name} = {shown(value)} is not a number, nor a list of them") from None
    if numbers.ndim != 1 or len(numbers) not in (1, bins) or not np.isfinite(numbers).all():
        raise OptionError(
            f"{name} = {shown(value)} does not fit {bins} selected bins: give one number, or {bins}"
        )
    return np.broadcast_to(numbers, bins).copy()
