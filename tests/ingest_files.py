"""Small files of the real layouts for the tests of ingest, and files of which a part is in another."""

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr

import ingest
from homodyne_dask.store import schema
from homodyne_dask.store.arrays import SMALL_ARRAYS, array_digest, attributes_digest, read_array

Q, DT = 0.0054, 0.1


def decay(n: int, k: int = 0) -> np.ndarray:
    t = DT * np.arange(n)
    lag, age = np.abs(t[:, None] - t), np.minimum(t[:, None], t)
    return 1.02 + 0.25 * np.exp(-lag * (1 + 0.2 * k) / (0.3 + 0.2 * age))


def noisy(n: int, k: int = 0, sigma: float = 0.02) -> np.ndarray:
    """A full symmetric float32 matrix with white noise, no value 0 and a diagonal of its own."""
    upper = np.triu(np.random.default_rng(k).normal(decay(n, k), sigma), 1)
    return (upper + upper.T + np.diag(np.full(n, 2.5))).astype(np.float32)


def simulated(path: Path, layout: str = "aps-u", n: int = 40, bins: int = 3, **options) -> Path:
    phi = np.linspace(-60, 60, bins)
    defaults = {"q": Q, "contrast": 0.25, "frame_time": DT, "n_frames": n}
    return ingest.simulate(
        path, lambda k: decay(n, k), layout=layout, phi=phi, **(defaults | options)
    )


def edited(path: Path, **changes) -> Path:
    """The same file with datasets replaced, dropped (None) or computed from what they were."""
    with h5py.File(path, "r+") as file:
        for name, value in changes.items():
            found = file.get(name)
            old = found[()] if isinstance(found, h5py.Dataset) else None
            if found is not None:
                del file[name]
            if isinstance(value, Callable):
                value = value(old)
            if value is not None:
                file[name] = value
    return path


NEXUS_STORAGE = {
    "storage_mode": "one_array_q_first",
    "baseline_reference": 1,
    "time_origin_location": "upper_left",
    "populated_elements": "all",
}
NEXUS_ARRAY = "entry/twotime/two_time_corr_func"


def nexus(path, matrices, detector="detector_1", masks=True, **storage):
    """Write the layout of the NeXus definition, of three regions."""
    held = {**NEXUS_STORAGE, **storage}
    with h5py.File(path, "w") as file:
        file["entry/definition"] = "NXxpcs"
        if held["storage_mode"] == "data_exchange_keys":
            for key, matrix in matrices.items():
                file[f"{NEXUS_ARRAY}/{key}"] = matrix
        else:
            file[NEXUS_ARRAY] = matrices
        file[NEXUS_ARRAY].attrs.update({k: v for k, v in held.items() if v is not None})
        file[f"entry/instrument/{detector}/frame_time"] = DT
        file[f"entry/instrument/{detector}/count_time"] = 0.9 * DT
        if masks:
            file["entry/instrument/masks/dynamic_roi_map"] = np.repeat(np.arange(4), 25)
            file["entry/instrument/masks/dynamic_q_list"] = [Q, Q, 2 * Q]
            file["entry/instrument/masks/dynamic_q_list"].attrs["units"] = "1/Å"
            file["entry/instrument/masks/dynamic_phi_list"] = [-60.0, 0.0, 60.0]
            file["entry/instrument/masks/dynamic_phi_list"].attrs["units"] = "1/Å"
    return path


def repeats(folder: Path, scans: Iterable[np.ndarray], **held) -> Path:
    """Return the store of several scans; held: what each of their files has besides c2."""
    files = []
    for k, c2 in enumerate(scans):
        files.append(folder / f"R{k}.npz")
        np.savez(files[-1], c2=np.triu(c2, 1), **held)
    return ingest.ingest(files, folder / "all.zarr").store


def interrupt_ingest(source, store, bins: int, **options) -> None:
    """Begin an ingest, which an interrupt ends when so many bins are done."""

    def stop(done: int, _: int) -> None:
        if done == bins:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingest.ingest(source, store, progress=stop, **options)


def upper(c2: np.ndarray) -> np.ndarray:
    """What the store holds of full matrices."""
    return np.where(np.tri(c2.shape[-1], dtype=bool), np.nan, c2).astype(np.float32)


def manifest(store: Path) -> bytes:
    return (store / schema.MANIFEST).read_bytes()


def arrays(store: Path) -> dict[str, np.ndarray]:
    root = zarr.open_group(store, mode="r")
    return {name: np.asarray(array) for name, array in root.arrays()}


def files_of_store(store: Path) -> tuple[dict[str, bytes], dict]:
    """Every file of a store but the metadata, and its attributes."""
    files = [file for file in store.rglob("*") if file.is_file() and file.name != "zarr.json"]
    return {str(file.relative_to(store)): file.read_bytes() for file in files}, attributes(store)


def attributes(store: Path) -> dict:
    return dict(zarr.open_group(store, mode="r").attrs)


def reseal(store: Path, **others) -> None:
    """Let the manifest say what the small arrays and attributes of a store are now, and others of its own."""
    root = json.loads((store / "zarr.json").read_bytes())
    listed = json.loads(manifest(store)) | others
    listed["arrays"] = {name: array_digest(read_array(store, name)) for name in SMALL_ARRAYS}
    listed["attributes"] = attributes_digest(root["attributes"])
    content = json.dumps(listed).encode()
    (store / schema.MANIFEST).write_bytes(content)
    root["attributes"]["store_sha256"] = hashlib.sha256(content).hexdigest()
    (store / "zarr.json").write_text(json.dumps(root))


WAYS = ("external link", "two links", "raw file", "virtual")
"""In which a part of an HDF5 file is in another file."""


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
