"""Scaling modes: how contrast and offset of the bins depend on each other."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.errors import OptionError, require_known, shown
from homodyne_dask.solver.scaling_bounds import ScalingPrior

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
    fixed_params: Float[np.ndarray, "bin 2"] | None = None
    """(offset - 1, contrast) where they are fixed."""
    prior: ScalingPrior | None = None
    """Bounds and priors of contrast and offset; in `individual` and `shared` only."""

    @property
    def mode_for_initial_values(self) -> str:
        """The mode in which initial values are searched: one that needs neither angles nor values."""
        return "shared" if self.mode == "shared" else "individual"


def scaling_of(
    mode: str,
    phi: Float[np.ndarray, " bin"],
    contrast: float | Sequence[float] | None = None,
    offset: float | Sequence[float] | None = None,
    prior: ScalingPrior | None = None,
    alike: Int[np.ndarray, " bin"] | None = None,
) -> Scaling:
    """Return the scaling of bins at angles phi [degree].

    alike: a number for each bin; in the modes of ALIKE bins of one number share contrast and offset.

    contrast and offset, one value or one per bin, belong to 'fixed' and to no other mode; a prior
    to 'individual', where it holds for every bin, and to 'shared'. Raises OptionError for unknown
    modes and for values that are missing or too many.
    """
    require_known(mode, MODES, f"scaling {mode!r} is unknown")
    if prior is not None and mode not in ("individual", "shared"):
        raise OptionError(
            f"bounds and priors of contrast and offset do not apply to scaling {mode!r}: "
            f"leave them out, or use 'individual' or 'shared'"
        )
    values = {"contrast": contrast, "offset": offset}
    if mode != "fixed":
        for name, value in values.items():
            if value is not None:
                raise OptionError(f"{name} is given, but scaling is {mode!r}: use scaling 'fixed'")
        if mode == "individual":
            return Scaling(prior=prior)
        if mode in ALIKE:
            apart = alike is None or len(np.unique(alike)) == len(alike)
            if apart and mode != "scans":
                return Scaling()  # each has one bin
            if apart:
                raise OptionError(
                    "scaling 'scans' shares contrast and offset between repeated scans, but no "
                    "selected bin is in two scans: use 'individual'"
                )
            assert alike is not None
            # a column for each number, 1 at the bins that have it
            return Scaling(mode, (alike[:, None] == np.unique(alike)).astype(float))
        order = 0 if mode == "shared" else int(mode[-1])
        if order and not np.isfinite(phi).all():
            raise OptionError(
                f"scaling {mode!r} needs φ, which is unknown for some bins: select only bins with a known φ, "
                f"or use 'individual'"
            )
        return Scaling(mode, fourier_columns(phi, order), prior=prior)
    fixed = {name: _per_bin(name, value, len(phi)) for name, value in values.items()}
    return Scaling(mode, fixed_params=np.stack([fixed["offset"] - 1, fixed["contrast"]], axis=1))


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
    numbers = np.atleast_1d(np.asarray(value, float))
    if len(numbers) not in (1, bins):
        raise OptionError(
            f"{name} = {shown(value)} does not match the {bins} selected bins: give one number, or {bins}"
        )
    return np.broadcast_to(numbers, bins).copy()
