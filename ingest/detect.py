"""What kind of file it is, by its content."""

from pathlib import Path

from homodyne_dask.errors import OptionError, SourceError
from ingest import aps_legacy, aps_u, hdf5
from ingest.arrays import open_npy, open_npz
from ingest.source import Options, Source, apply_options

HDF5, NPY, ZIP = b"\x89HDF\r\n\x1a\n", b"\x93NUMPY", b"PK\x03\x04"


def open_source(path: Path, options: Options) -> Source:
    """Return the source in a file, whatever its name ends in."""
    magic = _first_bytes(path)
    if magic.startswith(NPY):
        return apply_options(open_npy(path, options), options)
    if magic.startswith(ZIP):
        return apply_options(open_npz(path, options), options)
    if not magic.startswith(HDF5):
        raise SourceError(
            f"{path} is neither HDF5 nor .npy nor .npz (it begins with {magic!r}): check the file"
        )
    source = _open_hdf5(path)
    for name in ("q", "phi"):
        if getattr(options, name) is not None:
            raise OptionError(f"{name} is read from {path.name}: leave it out")
    return apply_options(source, options)


def _open_hdf5(path: Path) -> Source:
    with hdf5.opened(path) as file:
        groups = {name: hdf5.has(file, name) for name in (aps_u.MATRICES, aps_legacy.MATRICES)}
    if groups[aps_u.MATRICES]:
        return aps_u.open_aps_u(path)
    if groups[aps_legacy.MATRICES]:
        return aps_legacy.open_aps_legacy(path)
    raise SourceError(
        f"{path} is HDF5 but has no two-time matrices: neither {' nor '.join(groups)}"
    )


def _first_bytes(path: Path) -> bytes:
    if not path.is_file():
        raise SourceError(f"{path} is no file: check the name")
    try:
        with path.open("rb") as file:
            return file.read(8)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error
