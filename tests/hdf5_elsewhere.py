"""HDF5 files of which a part is in another file, in every way that HDF5 has."""

from pathlib import Path

import h5py
import numpy as np

WAYS = ("external link", "two links", "raw file", "virtual")


def moved_elsewhere(path: Path, name: str, way: str) -> None:
    """Move a dataset of a file in the working folder to `secret.hdf` or `secret.raw` beside it."""
    with h5py.File(path, "r+") as file, h5py.File("secret.hdf", "w") as secret:
        secret["held"] = file[name][()]
        held, shape, kind = dict(file[name].attrs), file[name].shape, file[name].dtype
        Path("secret.raw").write_bytes(np.asarray(secret["held"]).tobytes())
        del file[name]
        if way == "external link":
            file[name] = h5py.ExternalLink("secret.hdf", "/held")
        elif way == "two links":
            file["aside"] = h5py.ExternalLink("secret.hdf", "/")
            file[name] = h5py.SoftLink("/aside/held")
        elif way == "raw file":
            size = kind.itemsize * int(np.prod(shape))
            file.create_dataset(name, shape, kind, external=[("secret.raw", 0, size)])
            file[name].attrs.update(held)
        else:
            layout = h5py.VirtualLayout(shape, kind)
            layout[...] = h5py.VirtualSource("secret.hdf", "held", shape)
            file.create_virtual_dataset(name, layout)
            file[name].attrs.update(held)
