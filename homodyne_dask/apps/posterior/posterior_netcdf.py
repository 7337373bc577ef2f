"""A posterior as a netCDF file, written and read back."""

import hashlib
import json
from pathlib import Path

import numpy as np
import xarray
from xarray import DataTree

from homodyne_dask.apps.posterior.arviz_tree import FORMAT, VERSION
from homodyne_dask.apps.posterior.posterior import Posterior
from homodyne_dask.errors import OptionError, SourceError, why_unreadable
from homodyne_dask.results.files.json_files import MAX_BYTES, missing_values
from homodyne_dask.results.saved_results import from_summary, reportable
from homodyne_dask.store.files import path_of, read_with_tail, replace_file
from homodyne_dask.store.hdf5_files import check_contents

NETCDF = "posterior.nc"
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
    content = bytes(content)
    replace_file(path, content + _digest(content))


def check_netcdf_path(path: str | Path) -> Path:
    """Return the path of a posterior that is to be written; raises OptionError for one of Zarr."""
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


def load_posterior(path: str | Path) -> Posterior:
    """Read a posterior written by `to_netcdf`, or the posterior in the folder of a fit.

    path: the file or the folder. Raises SourceError for any other file.

    >>> hd.posterior(hd.fit("A0123_c2.zarr", "brownian"), draws=500).to_netcdf("A0123.nc")
    >>> hd.load_posterior("A0123.nc").reliable
    True
    """
    where = path_of("path", path)
    if where.is_dir():
        where /= NETCDF
    tree = read_tree(where)
    with missing_values(where):
        fit = tree["constant_data"].dataset["fit_summary"].values.tobytes()
        posterior = Posterior(from_summary(json.loads(fit)), tree)
        for name, of in tree["posterior"].dataset.data_vars.items():
            if of.dtype.kind != "f" or of.dims[:2] != ("chain", "draw"):
                raise ValueError(f"{name} has no real numbers of chains and draws")
        if not (np.abs(posterior.theta) < 1e100).all():
            raise ValueError("a draw is no number, or none whose square is one")
        return reportable(posterior)
