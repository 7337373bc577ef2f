"""Values and pictures in HDF5 files; every failure is a SourceError naming the dataset."""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from jaxtyping import Float
from pydantic import ValidationError

from homodyne_dask.errors import SourceError
from homodyne_dask.request.ingest_options import converted, decimals
from homodyne_dask.store import schema
from homodyne_dask.store.hdf5_files import (
    as_text,
    file_name,
    members,
    object_at,
    open_hdf5,
    part_of,
    reading,
    wrong,
)
from ingest.readers.source import Pictures, check_frames

MAX_SMALL_ELEMENTS = 100_000_000
"""Elements; anything but a matrix that claims more is damaged."""
PACKING = (
    "_fillvalue", "missing_value", "valid_min", "valid_max", "valid_range", "scale_factor", "add_offset",
)  # fmt: skip
"""Attributes in lower case (CF conventions) that say how the numbers of a dataset are to be read."""
MAX_LIST_ELEMENTS = 1_000_000
"""Elements of a list with one entry per bin, ring or angle."""


def dataset_at(file: h5py.File, name: str) -> h5py.Dataset | None:
    item = object_at(file, name)
    return item if isinstance(item, h5py.Dataset) else None


def has_group(file: h5py.File, group: str) -> bool:
    return isinstance(object_at(file, group), h5py.Group)


def attributes_of(file: h5py.File, name: str) -> dict[str, Any]:
    item = object_at(file, name)
    with reading(file, name):
        return {} if item is None else {as_text(key): value for key, value in item.attrs.items()}


def array(file: h5py.File, name: str) -> np.ndarray:
    dataset = dataset_at(file, name)
    if dataset is None:
        raise SourceError(f"{file_name(file)} has no {name}: it is not a complete two-time result")
    if dataset.dtype.kind not in "fiub":
        raise wrong(file, name, f"contains {dataset.dtype}, not numbers")
    # in float64, as the sizes that a damaged file claims overflow int64
    if dataset.shape is None or np.prod(dataset.shape, dtype=float) > MAX_SMALL_ELEMENTS:
        raise wrong(file, name, f"has shape {dataset.shape}: it is damaged")
    with reading(file, name):
        values = part_of(dataset)
    return _unpacked(file, name, values)


def optional(file: h5py.File, name: str) -> np.ndarray | None:
    return None if dataset_at(file, name) is None else array(file, name)


def read_part(file: h5py.File, name: str, index: Any = ()) -> np.ndarray:
    """Return a part of a dataset of matrices, of which the size was checked before."""
    dataset = dataset_at(file, name)
    if dataset is None:
        raise SourceError(f"{file.filename} no longer has {name}")
    with reading(file, name, checked_size=True):
        values = part_of(dataset, index)
    return _unpacked(file, name, values)


def _unpacked(file: h5py.File, name: str, values: np.ndarray) -> np.ndarray:
    """Return numbers of a dataset as its attributes say: NaN where missing or not valid, then scaled."""
    attributes = {key.lower(): value for key, value in attributes_of(file, name).items()}
    packing = {
        key: _numbers_of(file, name, key, attributes[key]) for key in PACKING if key in attributes
    }
    if text(attributes.get("_unsigned", "")).lower() == "true":  # the attributes are signed, too
        values = values.view(values.dtype.str.replace("i", "u"))
        span = 256.0**values.dtype.itemsize
        packing |= {key: packing[key] % span for key in PACKING[:5] if key in packing}
    if not packing:
        return values
    low, high = packing.get("valid_range", np.array([-np.inf, np.inf]))
    low = max(low, *packing.get("valid_min", [low]))
    high = min(high, *packing.get("valid_max", [high]))
    (scale,), (offset,) = packing.get("scale_factor", [1.0]), packing.get("add_offset", [0.0])
    if low > high or scale == 0 or not np.isfinite([scale, offset]).all():
        raise wrong(file, name, f"cannot be read as its attributes say: {', '.join(packing)}")
    missing = np.concatenate([packing.get(key, []) for key in PACKING[:2]])
    if values.dtype.kind == "f":  # 1e20 of float32 is not that of float64
        missing = missing.astype(values.dtype)
    gone = np.isin(values, missing) | (values < low) | (values > high)
    kind = np.result_type(values.dtype, np.float32)
    return np.where(gone, np.nan, values).astype(kind) * kind.type(scale) + kind.type(offset)


def _numbers_of(file: h5py.File, name: str, key: str, value: Any) -> np.ndarray:
    with suppress(TypeError, ValueError):
        numbers_of_attribute = np.array([float(text(number)) for number in np.ravel(value)])
        counts = {"valid_range": (2,), "missing_value": range(1, 100)}.get(key, (1,))
        if len(numbers_of_attribute) in counts:
            return numbers_of_attribute
    raise wrong(file, name, f"has the attribute {key} = {value}: correct or remove it")


def numbers(
    file: h5py.File, name: str, *, whole: bool = False, count: int | None = None
) -> np.ndarray:
    """Return a short list of any shape as finite float64, each its shortest decimal; whole: as int64."""
    stored = array(file, name)
    if stored.size > MAX_LIST_ELEMENTS:
        raise wrong(file, name, f"has {stored.size} entries: it is damaged")
    values = decimals(stored)
    if count not in (None, values.size):
        raise wrong(file, name, f"has {values.size} entries instead of {count}")
    if values.size == 0 or not np.isfinite(values).all():
        raise wrong(file, name, f"must contain finite numbers, not {values[:5]}")
    # beyond 2**53 float64 has no odd numbers: what was written is not known
    if whole and ((values != np.round(values)) | (np.abs(values) > 2**53)).any():
        raise wrong(file, name, f"must contain whole numbers, not {values[:5]}")
    return values.astype(np.int64) if whole else values


def quantity(
    file: h5py.File,
    name: str,
    what: str,
    notes: list[str],
    unit_if_none: str | None = None,
    count: int | None = None,
) -> np.ndarray:
    """Return a list of q in 1/Å, of phi in degrees or of time in s; add to `notes` what was converted."""
    values, units = numbers(file, name, count=count), unit(file, name) or unit_if_none
    where = name if what != "time" else f"{name} of {file_name(file)}"
    return converted(what, values, units, where, notes)


def positive(file: h5py.File, name: str, *, whole: bool = False) -> float:
    """Return one number above zero, stored as (), (1,) or (1, 1) in any width."""
    value = numbers(file, name, whole=whole)
    if value.size != 1 or value[0] <= 0:
        raise wrong(file, name, f"must be one positive number, not {value[:5]}")
    return value[0].item()


def seconds(file: h5py.File, name: str) -> float:
    positive(file, name)
    return quantity(file, name, "time", []).item()


def regions(file: h5py.File, name: str) -> np.ndarray | None:
    """Return the bin of each pixel of a map, 0 where it is in none; None without a map."""
    bins = optional(file, name)
    if bins is None:
        return None
    if not (bins.size and np.isfinite(bins).all() and bins.min() >= 0):
        raise wrong(file, name, "must contain bin numbers of at least 0: it is damaged")
    return bins.ravel().astype(np.int64)


def sum_in_bins(
    regions: np.ndarray | None, label: np.ndarray, weights: np.ndarray | None = None
) -> np.ndarray:
    """Return the pixels of each bin in a map of regions, 0 without one, or the sum of their weights."""
    if regions is None:
        return np.zeros(len(label), dtype=np.int64)
    # pixels of bins beyond the last are counted together: a damaged map would claim any number of them
    last = int(label.max())
    return np.bincount(np.minimum(regions, last + 1), weights, minlength=last + 1)[label]


def unit(file: h5py.File, name: str) -> str | None:
    """Return the unit written at a dataset, in an attribute unit or units of any case; None without one."""
    words = {
        text(np.ravel(value)[0])
        for key, value in attributes_of(file, name).items()
        if key.lower() in ("unit", "units") and np.size(value) == 1
    }
    if len(words) > 1:
        raise wrong(file, name, f"has several units, {' and '.join(sorted(words))}: correct it")
    return words.pop() if words else None


def strings(file: h5py.File, name: str) -> list[str]:
    dataset = dataset_at(file, name)
    with reading(file, name):
        return [] if dataset is None else [text(word) for word in np.ravel(part_of(dataset))]


def text(word: Any) -> str:
    return word.decode("utf-8", "replace") if isinstance(word, bytes) else str(word)


def truth(file: h5py.File) -> dict[str, Any]:
    """Return the fields of `Source` that a simulated file states: its truth, and the gap there."""
    with reading(file, "the attribute truth"):
        truth = json.loads(text(file.attrs.get("truth", "{}")))
    with suppress(ValidationError):
        gap = schema.checked_truth(truth).get("gap_angstrom")
        return {"truth": truth, "gap_angstrom": gap}
    return {}


def matrix_names(file: h5py.File, group: str, pattern: str) -> dict[int, str]:
    """Return number → name of the matrices in a group; pattern: of their names, the number in parentheses."""
    matches = [re.fullmatch(pattern, name, re.ASCII) for name in members(file, group)]
    names = {int(match[1]): f"{group}/{match[0]}" for match in matches if match}
    if not names:
        raise wrong(file, group, f"contains no matrix named as {pattern}")
    return dict(sorted(names.items()))


def common_side(file: h5py.File, names: list[str]) -> int:
    """Return N when every matrix is N×N, else name the one that is not."""
    sides = {}
    for name in names:
        matrix = dataset_at(file, name)
        shape = None if matrix is None else matrix.shape
        if matrix is None or shape is None or len(shape) != 2 or shape[0] != shape[1]:
            raise wrong(file, name, f"has shape {shape}: it must be square")
        if matrix.dtype.kind not in "fiu":
            raise wrong(file, name, f"contains {matrix.dtype}, not real numbers")
        sides.setdefault(shape[0], name)
    if len(sides) > 1:
        (n, first), (m, name) = list(sides.items())[:2]
        raise wrong(file, name, f"is {m}×{m}, but {first} is {n}×{n}")
    side = next(iter(sides))
    check_frames(side, Path(file_name(file)), len(names))
    return side


def read_matrix(path: Path, name: str) -> np.ndarray:
    with open_hdf5(path) as file:  # never slices: a matrix is mostly one compressed chunk
        return read_part(file, name)


def experiment(file: h5py.File, entry: str, detector: str) -> dict[str, dict[str, Any]]:
    """Return value and units of what the groups of the entry and the detector say, by its name."""
    groups = {
        entry: schema.ENTRY_FIELDS,
        f"{entry}/instrument/incident_beam": schema.BEAM_FIELDS,
        f"{entry}/sample": schema.SAMPLE_FIELDS,
        detector: schema.DETECTOR_FIELDS,
    }
    return {
        name: value
        for group, names in groups.items()
        for name in names
        if (value := _value(file, f"{group}/{name}")) is not None
    }


def kept(path: Path, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the values at paths in a file, such as /entry/sample/humidity, as `experiment` does."""
    if not names:
        return {}
    values = dict[str, dict[str, Any]]()
    with open_hdf5(path) as file:
        for name in names:
            if (value := _value(file, name)) is None:
                what = "no dataset"
                if (dataset := dataset_at(file, name)) is not None:
                    what = f"no single number (its shape is {dataset.shape}) at"
                raise SourceError(
                    f"{path.name} has {what} {name}: correct keep, or leave it out and give the values of "
                    f"scans to the fit (--scan-values)"
                )
            values[name] = value
    return values


def _value(file: h5py.File, name: str) -> dict[str, Any] | None:
    dataset = dataset_at(file, name)
    if dataset is None or dataset.size != 1:
        return None
    kind = dataset.dtype.kind
    if kind in "SO":
        (words,) = strings(file, name)
        return {"value": words} if words.strip() else None
    number = decimals(array(file, name)).item() if kind in "fiu" else np.nan
    if not np.isfinite(number):
        return None
    units = unit(file, name)
    return {"value": int(number) if kind in "iu" else number} | ({"units": units} if units else {})


MAX_SIDE = 256
"""Pixels along a side of an image that is kept."""


def pictures_in(
    file: h5py.File, flux: Sequence[str], image: Sequence[str], n_frames: int, begin: int = 0,
    stride: int = 1, avg: int = 1,
) -> Pictures:  # fmt: skip
    """Return the pictures in the first of these datasets that exists; begin: detector frame, from 0."""
    intensity, mean = numbers_in(file, flux), numbers_in(file, image)
    if intensity is not None:
        intensity = by_frame(intensity, n_frames, begin, stride, avg)
    return Pictures(intensity, None if mean is None else _reduced(mean))


def numbers_in(file: h5py.File, names: Sequence[str]) -> np.ndarray | None:
    """Return the first of these datasets that exists as float64; None without one, or if it is damaged."""
    for name in names:
        with suppress(SourceError):
            values = optional(file, name)
            if values is not None and values.size:
                return values.astype(np.float64)
    return None


def by_frame(
    intensity: np.ndarray, n_frames: int, begin: int, stride: int, avg: int
) -> Float[np.ndarray, " t"] | None:
    """Return the intensity of each analysed frame, None where it does not cover them.

    intensity: one number per analysed or per detector frame; of two rows, the first has the frames' numbers.
    """
    rows = np.atleast_2d(np.squeeze(intensity))
    if rows.ndim != 2 or min(rows.shape) > 2:
        return None
    flux = (rows[:, -1] if rows.shape[1] == 2 < len(rows) else rows[-1]).astype(np.float64)
    if len(flux) == n_frames:
        return flux
    frames = begin + stride * np.arange(n_frames * avg)
    if frames[-1] >= len(flux):
        return None
    return flux[frames].reshape(n_frames, avg).mean(axis=1)


def _reduced(image: np.ndarray) -> Float[np.ndarray, "y x"] | None:
    while image.ndim > 2:
        image = image[0]
    if image.ndim != 2 or min(image.shape) < 3:
        return None
    side = -(-max(image.shape) // MAX_SIDE)
    padded = np.pad(image, [(0, -length % side) for length in image.shape], constant_values=np.nan)
    rows, columns = (length // side for length in padded.shape)
    blocks = padded.reshape(rows, side, columns, side).transpose(0, 2, 1, 3)
    blocks = blocks.reshape(rows, columns, side**2)
    measured = np.isfinite(blocks) & (blocks >= 0)  # below 0 detectors mark their dead pixels
    count, total = measured.sum(axis=-1), np.where(measured, blocks, 0).sum(axis=-1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan) if count.any() else None
