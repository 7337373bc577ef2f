"""A posterior as a netCDF file, written and read back."""

import hashlib
from pathlib import Path

import xarray
from xarray import DataTree

from homodyne_dask.apps.posterior.arviz_tree import FORMAT, VERSION
from homodyne_dask.errors import OptionError, SourceError, why_unreadable
from homodyne_dask.results.files.json_files import MAX_BYTES
from homodyne_dask.store.files import path_of, read_with_tail, replace_file
from homodyne_dask.store.hdf5_files import check_contents

FILE = "posterior.nc"
_SIZE = 64
"""Bytes of the checksum at the end of a file: the SHA-256 of all others."""
_REMEDY = "give posterior.nc of a fit, or recreate it with `homodyne-dask posterior`"


def write_netcdf(tree: DataTree, path: str | Path) -> None:
    """Write a tree as netCDF-4, atomically, and its checksum after it, where readers of HDF5 do not look.

    It is made in memory: HDF5 crashes where it cannot write to a disk.
    """
    path = check_netcdf_path(path)
    content = tree.to_netcdf(engine="h5netcdf")
    assert content is not None  # no path was given
    replace_file(path, bytes(content) + _digest(bytes(content)))


def check_netcdf_path(path: str | Path) -> Path:
    where = path_of("path", path)
    if where.suffix == ".zarr":
        raise OptionError(
            f"{where} would be a Zarr store, but a posterior is written as netCDF: give "
            f"{where.with_suffix('.nc')}, or write its tree with posterior.tree.to_zarr"
        )
    return where


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def read_tree(path: Path) -> DataTree:
    """Return the tree of a posterior, all in memory; raises SourceError for what is none."""
    try:
        content, checksum = read_with_tail(path, MAX_BYTES, _SIZE)
        if _digest(content) != checksum:
            raise SourceError(
                f"{path} is not a {FORMAT} as it was written (its checksum does not match), but damaged or "
                f"another file: {_REMEDY}"
            )
        check_contents(path)
        with xarray.open_datatree(path, engine="h5netcdf", phony_dims="sort") as opened:
            declared = opened.nbytes  # of all groups
            if declared > len(content):  # it is not compressed
                raise ValueError(f"it declares {declared:,} bytes in {len(content):,}")
            tree = opened.load()
    except OSError as e:
        raise SourceError(f"{path} cannot be read: {why_unreadable(e)}; {_REMEDY}") from e
    except (ValueError, KeyError, TypeError, RuntimeError) as e:
        raise SourceError(f"{path} is damaged, {why_unreadable(e)}: {_REMEDY}") from e
    if str(tree.attrs.get("format")) != FORMAT:
        raise SourceError(f"{path} is not a {FORMAT}: {_REMEDY}")
    if tree.attrs.get("format_version") != VERSION:
        raise SourceError(
            f"{path} has format version {tree.attrs.get('format_version')}, but this program reads "
            f"{VERSION}: recreate it with `homodyne-dask posterior`"
        )
    return tree
