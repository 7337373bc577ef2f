"""A posterior as a netCDF file or a Zarr folder, written and read back."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

import xarray
from xarray import DataTree

from homodyne_dask.errors import OptionError, SourceError, why_unreadable
from homodyne_dask.results.data.arviz_tree import draws_in
from homodyne_dask.results.data.posterior import Posterior
from homodyne_dask.results.data.posterior_draws import FORMAT, VERSION
from homodyne_dask.results.files.json_files import CHECKSUM, MAX_BYTES, missing_values
from homodyne_dask.store.files import (
    PARTIAL,
    path_of,
    read_regular_file,
    read_with_tail,
    write_atomic,
    write_file,
)
from homodyne_dask.store.hdf5_files import check_contents

NETCDF, JSON = "posterior.nc", "posterior.json"
ZARR = ".zgroup"
"""A file of a Zarr folder of format 2, whose metadata may be consolidated: that of 3 would be unofficial."""
_CHECKSUM, _SIZE = f".{CHECKSUM}", 64
"""File of a Zarr folder with the SHA-256 of all others; that of a netCDF file is at its end."""
_REMEDY = "give posterior.nc of a fit, or recreate it with `homodyne-dask posterior`"


def write_netcdf(tree: DataTree, path: str | Path) -> None:
    """Write a tree as netCDF-4, atomically, and its checksum after it, where readers of HDF5 do not look.

    It is made in memory: HDF5 crashes where it cannot write to a disk.
    """
    content = tree.to_netcdf(engine="h5netcdf")
    assert content is not None  # no path was given
    content = bytes(content)
    write_atomic(path_of("path", path), content + _digest(content))


def write_zarr(tree: DataTree, path: str | Path) -> None:
    """Write a tree as a Zarr folder beside the path, and let it take the place of an earlier one."""
    path = path_of("path", path)
    if path.exists() and not _is_posterior(path):
        raise OptionError(f"{path} is not a {FORMAT} and is not replaced: give another path")
    partial = path.with_name(f"{path.name}.{uuid4().hex}{PARTIAL}")
    try:
        tree.to_zarr(partial, consolidated=True, zarr_format=2)
        write_file(partial / _CHECKSUM, _digest(_contents(partial)[0]))
        if path.exists():
            shutil.rmtree(path)
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _contents(folder: Path) -> tuple[bytes, bytes]:
    """Return the files of a Zarr folder with their names and sizes, and its checksum.

    Raises SourceError for a link, a pipe or a device.
    """
    read = {}
    for found in sorted(folder.rglob("*")):
        if found.is_symlink() or not (found.is_file() or found.is_dir()):
            raise SourceError(
                f"{found} is a link, a pipe or a device, but only files in the folder itself are read: "
                f"copy the folder with the targets of its links (cp -rL)"
            )
        if found.is_file():
            read[str(found.relative_to(folder))] = read_regular_file(found, MAX_BYTES)
    checksum = read.pop(_CHECKSUM, b"")
    return b"".join(f"{name} {len(of)}\n".encode() + of for name, of in read.items()), checksum


def _is_posterior(folder: Path) -> bool:
    try:
        attributes = json.loads((folder / ".zattrs").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(attributes, dict) and attributes.get("format") == FORMAT


def read_tree(path: Path) -> DataTree:
    """Return the tree of a posterior, all in memory; raises SourceError for what is none."""
    zarr = path.is_dir()
    options: dict[str, Any] = {"engine": "zarr"} if zarr else {"engine": "h5netcdf"}
    try:
        content, checksum = _contents(path) if zarr else read_with_tail(path, MAX_BYTES, _SIZE)
        if _digest(content) != checksum:
            raise SourceError(
                f"{path} is not a {FORMAT} as it was written (its checksum does not match), but damaged or "
                f"another file: {_REMEDY}"
            )
        if not zarr:
            check_contents(path)
        with xarray.open_datatree(path, **options) as opened:
            tree = opened.load()
    except OSError as e:
        raise SourceError(f"{path} cannot be read: {why_unreadable(e)}; {_REMEDY}") from e
    except (ValueError, KeyError, TypeError, RuntimeError) as e:
        raise SourceError(f"{path} is damaged, {why_unreadable(e)}: {_REMEDY}") from e
    if tree.attrs.get("format") != FORMAT:
        raise SourceError(f"{path} is not a {FORMAT}: {_REMEDY}")
    if tree.attrs.get("format_version") != VERSION:
        raise SourceError(
            f"{path} has format version {tree.attrs.get('format_version')}, but this program reads "
            f"{VERSION}: recreate it with `homodyne-dask posterior`"
        )
    return tree


def load_posterior(path: str | Path) -> Posterior:
    """Read a posterior written by `to_netcdf` or `to_zarr`, or the posterior in the folder of a fit.

    path: the file or the folder. Raises SourceError for any other file.

    >>> hd.posterior(hd.fit("A0123_c2.zarr", "brownian"), draws=500).to_netcdf("A0123.nc")
    >>> hd.load_posterior("A0123.nc").reliable
    True
    """
    where = path_of("path", path)
    if where.is_dir() and not (where / ZARR).exists():
        where /= NETCDF
    if where.suffix == ".json":
        raise SourceError(f"{where} contains no draws: give {where.with_suffix('.nc')}")
    tree = read_tree(where)
    with missing_values(where):
        return Posterior(*draws_in(tree), tree)
