"""The bins of an NXxpcs file: q, φ and pixels, from the group of its masks or from options."""

import h5py
import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.errors import OptionError, SourceError
from ingest.readers import hdf5
from ingest.readers.source import IngestOptions, decimal, degrees, inverse_angstrom, per_bin


def listed_q(
    file: h5py.File, name: str, label: np.ndarray, options: IngestOptions
) -> tuple[Float[np.ndarray, " bin"], list[str]]:
    """Return q of the bins in 1/Å from the list of that name, else from the option, and notes on it."""
    if hdf5.dataset(file, name) is None:
        return _from_option(file, name, "q", options.q, "1/Å", label), []
    _not_both(file, name, "q", options.q)
    values, notes = inverse_angstrom(
        _column(file, name, 0, label), _unit_or_none(hdf5.unit(file, name)), name
    )
    return values, notes


def listed_phi(
    file: h5py.File, name: str, label: np.ndarray, options: IngestOptions
) -> tuple[Float[np.ndarray, " bin"], list[str]]:
    """Return φ in degrees from its own list, or from the second column of the list of q, else likewise."""
    together = name.replace("dynamic_phi_list", "dynamic_q_list")
    if hdf5.dataset(file, name) is None:
        held = hdf5.dataset(file, together)
        if held is not None and held.ndim == 2 and held.shape[1] == 2:
            _not_both(file, together, "phi", options.phi)
            return _column(file, together, 1, label), [f"φ is the second column of {together}"]
        return _from_option(file, name, "phi", options.phi, "degrees", label), []
    _not_both(file, name, "phi", options.phi)
    unit = _unit_or_none(hdf5.unit(file, name))
    values = _column(file, name, 0, label)
    if unit is not None and unit.startswith("1/"):
        return values, [f"{name} is in {unit!r}, as NXxpcs has it: taken as degrees"]
    return degrees(values, unit, name)


def _unit_or_none(unit: str | None) -> str | None:
    return None if unit in ("", "au", "any") else unit


def _column(file: h5py.File, name: str, column: int, label: np.ndarray) -> np.ndarray:
    """Return the entries of the bins in a list that begins with bin 1."""
    held = hdf5.array(file, name)
    values = held[:, column] if held.ndim == 2 and held.shape[1] == 2 else held.ravel()
    if len(values) < label.max():
        raise SourceError(
            f"{name} of {hdf5.file_name(file)} has {len(values)} entries: there is bin {label.max()}"
        )
    found = np.array([decimal(value) for value in values[label - 1]])
    if not np.isfinite(found).all():
        raise SourceError(f"{name} of {hdf5.file_name(file)} holds no finite numbers: {found[:5]}")
    return found


def _from_option(file, name: str, what: str, given, unit: str, label) -> Float[np.ndarray, " bin"]:
    if given is None:
        raise OptionError(
            f"{hdf5.file_name(file)} has no {name}: give --{what} in {unit}, one number or one per "
            f"bin, or nan where it is unknown"
        )
    return per_bin(what, given, len(label))


def _not_both(file: h5py.File, name: str, what: str, given) -> None:
    if given is not None:
        raise OptionError(f"{what} is read from {name} of {hdf5.file_name(file)}: leave it out")


def pixels_per_bin(file: h5py.File, name: str, label: np.ndarray) -> Int[np.ndarray, " bin"]:
    """Return the pixels of each bin in the map of that name, 0 without one."""
    regions = hdf5.regions(file, name)
    if regions is None:
        return np.zeros(len(label), dtype=np.int64)
    last = int(label.max())
    return np.bincount(np.minimum(regions, last + 1), minlength=last + 1)[label]
