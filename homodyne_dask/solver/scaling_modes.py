"""Scaling modes: how contrast and offset of the bins depend on each other."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.errors import OptionError, nearest, shown
from homodyne_dask.solver.scaling_bounds import ScalingPrior

MODES = ("individual", "shared", "fourier1", "fourier2", "fourier3", "scans", "fixed")
_ALIASES = {"fourier": "fourier2"}
_HOMODYNE_MODES = {
    "constant": (
        "individual",
        "homodyne's 'constant' freezes estimates of each angle; here contrast and offset of each "
        "angle are eliminated exactly ('individual'); to freeze them, use 'fixed'",
    ),
    "auto": (
        "shared",
        "with 3 or more angles, homodyne's 'auto' means one contrast and one offset for all angles "
        "('shared')",
    ),
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
            return "individual", "with fewer than 3 angles, homodyne's 'auto' means 'individual'"
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
    alike: Int[np.ndarray, " bin"] | None = None,
) -> Scaling:
    """Return the scaling of bins at angles phi [degree].

    alike: of repeats, a number for each bin; in mode 'scans' bins of one number share contrast and offset.

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
        if plain == "scans":
            return Scaling(plain, _alike_columns(alike), note=note)
        order = 0 if plain == "shared" else int(plain[-1])
        if order and not np.isfinite(phi).all():
            raise OptionError(
                f"scaling {mode!r} needs φ, which is unknown for some bins: select only bins with a known φ, "
                f"or use 'individual'"
            )
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


def _alike_columns(alike: Int[np.ndarray, " bin"] | None) -> Float[np.ndarray, "bin m"]:
    """Return a column for each number, 1 at the bins that have it."""
    if alike is None or len(np.unique(alike)) == len(alike):
        raise OptionError(
            "scaling 'scans' shares contrast and offset between repeated scans, but no "
            "selected bin is in two scans: use 'individual'"
        )
    return (alike[:, None] == np.unique(alike)).astype(float)


def _per_bin(name: str, value: float | Sequence[float] | None, bins: int) -> np.ndarray:
    if value is None:
        raise OptionError(f"scaling 'fixed' needs {name}: one number, or one for each bin")
    try:
        numbers = np.atleast_1d(np.asarray(value, float))
    except (TypeError, ValueError):
        raise OptionError(
            f"{name} = {shown(value)} is neither a number nor a list of numbers"
        ) from None
    if numbers.ndim != 1 or len(numbers) not in (1, bins) or not np.isfinite(numbers).all():
        raise OptionError(
            f"{name} = {shown(value)} does not match the {bins} selected bins: give one number, or {bins}"
        )
    return np.broadcast_to(numbers, bins).copy()
