"""Simulated result files of known truth, with the noise of photon counting."""

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from jaxtyping import Float, Float32, Int

from homodyne_dask.errors import OptionError, StoreError, require_known
from homodyne_dask.store.files import no_room, replacing
from ingest.clean import sigma_from_counts
from ingest.readers.source import MAX_BINS


class FileForHdf5(io.FileIO):
    """A new file for h5py to write; an error is kept, and raised by `check` and at the end of a `with`.

    HDF5 cannot close a file that cannot be written: it prints its internals, or crashes. So all writes seem
    to succeed, and what could not be written is kept in memory: writers call `check` before large arrays.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "x+")
        self._error: OSError | None = None
        self._unwritten: list[tuple[int, bytes]] = []
        """Offset and content, in the order of writing."""

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def write(self, data: Any) -> int:
        content, begin = bytes(data), self.tell()
        try:
            while self._error is None and (unwritten := content[self.tell() - begin :]):
                super().write(unwritten)
        except OSError as e:
            self._error = e
        if self._error is not None:
            self._unwritten.append((begin, content))
        return len(content)

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer from the current position as if all had been written, with zeros past the end."""
        view, begin = memoryview(buffer).cast("B"), self.tell()
        read = super().readinto(view) or 0
        view[read:] = bytes(len(view) - read)
        for start, content in self._unwritten:
            first, last = max(begin, start), min(begin + len(view), start + len(content))
            if first < last:
                view[first - begin : last - begin] = content[first - start : last - start]
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size) if self._error is None else self.tell()
        except OSError as e:
            self._error = e
            return self.tell()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self.check()


LAYOUTS = ("aps-u", "aps-legacy")
NOISE = ("pairs", "speckle")
"""The noise of simulated scans: independent for each pair, or of photons counted in moving speckle."""
COUNTED_PIXELS = 1000
"""Pixels of a bin in which photons are counted one pixel at a time."""
Matrix = Callable[[int], np.ndarray]


@dataclass(frozen=True)
class Scenario:
    """The truth behind a simulated scan; `homodyne_dask.predict` turns it into matrices."""

    name: str
    model: str
    """brownian | static | laminar_flow, or temperature_step, which none of these describes."""
    parameters: Mapping[str, float]
    contrast: float = 0.30
    offset: float = 1.0
    q: float = 0.0054
    """1/Å."""
    gap: float | None = None
    """Å."""
    frame_time: float = 0.1
    """s."""
    shares: frozenset[str] = frozenset()
    """The parameters [s] that are given as shares of the record's length."""

    def over(self, n_frames: int) -> "Scenario":
        """Return the scenario on a record of so many frames: its parameters in s."""
        seconds = self.frame_time * n_frames
        lengths = {name: float(f"{self.parameters[name] * seconds:.6g}") for name in self.shares}
        return replace(self, parameters={**self.parameters, **lengths}, shares=frozenset())

    def contrasts(self, phi: Float[np.ndarray, " bin"]) -> Float[np.ndarray, " bin"]:
        """Return the contrast of each bin: a tenth more along the flow than across."""
        return self.contrast * (1 + 0.1 * np.cos(2 * np.deg2rad(phi)))

    def offsets(self, phi: Float[np.ndarray, " bin"]) -> Float[np.ndarray, " bin"]:
        return self.offset + 0.002 * np.sin(2 * np.deg2rad(phi))

    def truth(self, phi: Float[np.ndarray, " bin"], convention: str) -> dict[str, Any]:
        return {
            "scenario": self.name,
            "model": self.model,
            "convention": convention,
            "gap_angstrom": self.gap,
            "parameters": dict(self.parameters),
            "contrast": [float(f"{value:.6g}") for value in self.contrasts(phi)],
            "offset": [float(f"{value:.6g}") for value in self.offsets(phi)],
        }


def _flow(name: str, *values: float, **fields: Any) -> Scenario:
    names = ("D0", "alpha", "D_offset", "gamma_dot_t0", "beta", "gamma_dot_t_offset", "phi0")
    return Scenario(name, "laminar_flow", dict(zip(names, values, strict=True)), gap=2e6, **fields)


_STEP = {"J_before": 8000.0, "J_after": 24000.0, "t_step": 0.5, "width": 0.025}
SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        _flow("creep", 68480.0, -1.327, 1708.0, 9e-4, -0.212, -2.7e-4, 2.0, offset=1.106),
        Scenario("brownian", "brownian", {"D0": 20000.0, "alpha": 0.0, "D_offset": 0.0}),
        Scenario("static", "static", {"D0": 20000.0, "alpha": -0.4, "D_offset": 1000.0}),
        _flow("ageing", 30000.0, -0.5, 500.0, 5e-4, -0.5, 5e-5, -3.0),
        _flow("andrade", 8000.0, -0.3, 500.0, 1e-3, -0.667, 0.0, 5.0),
        Scenario("step", "temperature_step", _STEP, shares=frozenset({"t_step", "width"})),
    )
}


def angles(n: int) -> Float[np.ndarray, " bin"]:
    """Return n azimuths [degree], the middles of n sectors of a half circle; OptionError for too many."""
    if n > MAX_BINS:
        raise OptionError(
            f"{n:,} angles cannot be simulated: no file may have more than {MAX_BINS:,} bins"
        )
    return (np.arange(n) + 0.5) * 180.0 / n - 90.0


def simulate(
    path: str | Path,
    c2_of_bin: Matrix,
    *,
    layout: str,
    q,
    phi,
    contrast,
    n_frames: int,
    frame_time: float,
    n_pixels: int = 5000,
    counts: float = 1.0,
    stride: int = 1,
    avg: int = 1,
    seed: int = 0,
    truth: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    counted: Callable[[int, np.ndarray], np.ndarray] | None = None,
) -> Path:
    """Write a file of measured matrices: c2_of_bin(k), noise-free (N, N), and counting noise.

    q [1/Å] and contrast are one number or one per bin; frame_time [s] is the spacing of the stored
    frames; counts is the mean per pixel and stored frame. σ² = (1/μ(t1) + β)(1/μ(t2) + β)/n_pixels,
    independent for each pair t1 < t2. One matrix at a time is in memory; seed and bin fix
    its noise. If `counted` is given, counted(k, counts of each frame) is c2 with its noise.
    Files list their bins by q, then φ, and so does the truth they carry.
    """
    path = Path(path)
    require_known(layout, LAYOUTS, f"layout {layout!r} is unknown")
    if path.exists() and not overwrite:
        raise StoreError(f"{path} exists: give --overwrite to replace it")
    phi = np.asarray(phi, dtype=np.float64)
    q = np.broadcast_to(np.asarray(q, dtype=np.float64), phi.shape)
    contrasts = np.broadcast_to(np.asarray(contrast, dtype=np.float64), phi.shape)
    order = np.lexsort((phi, q))
    flux = np.random.default_rng([seed, 2**31]).normal(1, 0.02, n_frames)
    flux /= flux.mean()
    scan = _SimulatedScan(q[order], phi[order], flux, frame_time, n_pixels, counts, stride, avg)

    def noisy(index: int) -> Float32[np.ndarray, "t t"]:
        """Return the upper half with noise; the diagonal carries the shot noise 1/μ."""
        output.check()
        k = int(order[index])
        if counted is not None:
            return np.triu(counted(k, counts * flux)).astype(np.float32)
        row = sigma_from_counts(counts * flux, float(contrasts[k]), n_pixels)
        c2, row = c2_of_bin(k), row.astype(np.float32)
        noise = np.random.default_rng([seed, k]).standard_normal(c2.shape, dtype=np.float32)
        noise *= row[:, None]
        noise *= row
        upper = np.triu(np.asarray(c2, dtype=np.float32) + noise, 1)
        np.fill_diagonal(upper, np.diagonal(c2) + 1 / counts)
        return upper

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            replacing(path, durable=False) as partial,
            FileForHdf5(partial) as output,
            h5py.File(output, "w", libver=("v108", "latest")) as file,
        ):
            (_write_aps_u if layout == "aps-u" else _write_aps_legacy)(file, scan, noisy, seed)
            if truth is not None:
                sorted_truth = dict(truth)
                for name, values in truth.items():
                    if isinstance(values, list) and len(values) == len(order):  # one per bin
                        sorted_truth[name] = [values[k] for k in order]
                file.attrs["truth"] = json.dumps(sorted_truth)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written: {no_room(error, path)} or give another name"
        ) from error
    return path


class _SimulatedScan(NamedTuple):
    q: Float[np.ndarray, " bin"]
    phi: Float[np.ndarray, " bin"]
    flux: Float[np.ndarray, " t"]
    """Mean 1."""
    frame_time: float
    n_pixels: int
    counts: float
    stride: int
    avg: int

    @property
    def detector_time(self) -> float:
        return float(f"{self.frame_time / (self.stride * self.avg):.15g}")


def _write_aps_u(file: h5py.File, scan: _SimulatedScan, noisy: Matrix, seed: int) -> None:
    """Write what boost_corr writes: bins in no order, one of the map's cells without pixels."""
    rings = np.concatenate([[scan.q.min() / 2], np.unique(scan.q)])
    columns = np.unique(scan.phi)
    cells = len(rings) * len(columns)
    mapping = np.arange(1, cells)
    cell = np.searchsorted(rings, scan.q) * len(columns) + np.searchsorted(columns, scan.phi)
    order = np.random.default_rng([seed, 2**31 + 1]).permutation(len(cell))
    qmap = file.create_group("/xpcs/qmap")
    qmap["dynamic_num_pts"] = [len(rings), len(columns)]
    qmap["dynamic_v_list_dim0"], qmap["dynamic_v_list_dim1"] = rings, columns
    qmap["dynamic_index_mapping"] = mapping
    qmap["map_names"], qmap["map_units"] = ["q", "phi"], ["1/Å", "deg"]
    roi = _roi_map(cells - 1, cell, scan.n_pixels)
    qmap.create_dataset("dynamic_roi_map", data=roi, compression="lzf")
    image = np.where(roi > 0, np.float32(scan.counts / scan.avg), np.float32(0))
    file.create_dataset("/xpcs/temporal_mean/scattering_2d", data=image[None], compression="lzf")
    frames = np.arange(len(scan.flux))
    file["/xpcs/spatial_mean/intensity_vs_time"] = np.stack([frames, scan.flux * scan.counts])
    file["/entry/instrument/detector_1/frame_time"] = scan.detector_time
    config = file.create_group("/xpcs/twotime/config")
    config["stride_frame"], config["avg_frame"] = scan.stride, scan.avg
    config["begin_frame"], config["end_frame"] = 0, -1
    file["/xpcs/twotime/processed_bins"] = cell[order]
    for number, index in enumerate(order, start=1):
        _put_matrix(file, f"/xpcs/twotime/correlation_map/c2_{number:05d}", noisy(index))


def _write_aps_legacy(file: h5py.File, scan: _SimulatedScan, noisy: Matrix, _seed: int) -> None:
    label = 2 + np.arange(len(scan.phi))
    file["/xpcs/dqlist"] = np.concatenate([scan.q[:1] / 2, scan.q])[None]
    file["/xpcs/dphilist"] = np.concatenate([scan.phi[:1], scan.phi])[None]
    file["/xpcs/qphi_bin_to_process"] = label[:, None].astype(np.uint64)
    file["/xpcs/dqmap"] = _roi_map(len(label) + 1, label, scan.n_pixels)
    file["/measurement/instrument/detector/exposure_period"] = [[scan.detector_time]]
    file["/xpcs/stride_frames"], file["/xpcs/avg_frames"] = [[scan.stride]], [[scan.avg]]
    for index, number in enumerate(label):
        upper = noisy(index)
        full = upper + np.triu(upper, 1).T
        _put_matrix(file, f"/exchange/C2T_all/g2_{number:05d}", full)


def _roi_map(regions: int, used: np.ndarray, n_pixels: int) -> Int[np.ndarray, "h w"]:
    pixels = np.full(regions + 1, 10)
    pixels[used] = n_pixels
    flat = np.repeat(np.arange(regions + 1), pixels)
    width = int(np.ceil(np.sqrt(len(flat))))
    return np.pad(flat, (0, width * width - len(flat))).reshape(width, width).astype(np.int32)


def _put_matrix(file: h5py.File, name: str, matrix: np.ndarray) -> None:
    file.create_dataset(name, data=matrix, chunks=matrix.shape, compression="lzf")
