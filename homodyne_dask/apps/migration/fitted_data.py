"""fitted_data.npz: data, model and residuals of every pair, written one matrix at a time."""

import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import numpy as np
from jaxtyping import Float

from homodyne_dask.results.data.block_means import as_fitted
from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.fitted_model import FittedModel, fitted_model
from homodyne_dask.store import schema
from homodyne_dask.store.files import named_in_errors
from homodyne_dask.store.scan import Chunk, Scan
from homodyne_dask.text import size

MAX_FILE_BYTES = 4_000_000_000
"""Bytes; a larger file is not written."""
Matrix = Float[np.ndarray, "t t"]


def fitted_data_refusal(scan: Scan) -> str | None:
    """Return why fitted_data.npz of a scan is not written, None where it is written."""
    frames = scan.frames[1] - scan.frames[0]
    needed = 8 * len(_arrays()) * len(scan.bins) * frames**2
    if needed <= MAX_FILE_BYTES:
        return None
    return (
        f"fitted_data.npz is not written: {len(_arrays())} arrays of {len(scan.bins)} x {frames} x "
        f"{frames} numbers take {size(needed)}, more than the limit of {size(MAX_FILE_BYTES)}; "
        f"select fewer bins or frames, or read c2 from the store and compute the model with hd.predict"
    )


def write_fitted_data(result: FitResult, scan: Scan, path: Path) -> None:
    """Write homodyne's fitted_data.npz with at most a few matrices of one bin in memory.

    Matrices are full and symmetric; their diagonal, which holds no data, is the mean of its neighbours,
    as in homodyne. residuals_normalized are residuals divided by sigma(t1, t2).
    """
    model, scan = fitted_model(result, scan), as_fitted(scan, result)
    per_bin = np.stack([result.scaling[name].values for name in ("contrast", "offset")], axis=1)
    time = scan.time[slice(*scan.frames)]
    vectors = {
        "phi_angles": scan.phi,
        "per_angle_scaling": per_bin,
        "per_angle_scaling_solver": per_bin,
        "t1": time,
        "t2": time,
        "q": scan.q[:1],
    }
    with named_in_errors(path), zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, values in vectors.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, np.asarray(values, float))
        for name, matrix in _arrays().items():
            bins = (BinMatrices(scan, model, per_bin, b) for b in range(len(scan.bins)))
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                _write(member, map(matrix, bins), scan)


def _write(member: IO[bytes], matrices: Iterator[Matrix], scan: Scan) -> None:
    n = scan.frames[1] - scan.frames[0]
    header = {"descr": "<f8", "fortran_order": False, "shape": (len(scan.bins), n, n)}
    np.lib.format.write_array_header_1_0(member, header)
    for matrix in matrices:
        member.write(np.ascontiguousarray(matrix, "<f8").data)


class BinMatrices:
    """The matrices of one bin over the selected frames, each computed when its method is called."""

    def __init__(
        self, scan: Scan, model: FittedModel, per_bin: Float[np.ndarray, "bin 2"], at: int
    ) -> None:
        self.scan, self.model, self.at = scan, model, at
        self.contrast, self.offset = per_bin[at]

    def data(self) -> Matrix:
        """Return the measured c2."""
        start, stop = self.scan.frames
        side = schema.tile_side(self.scan.n_frames)
        first, end = start // side * side, -(-stop // side) * side
        c2, tile = np.full((end - first,) * 2, np.nan), np.empty((side, side), np.float32)
        for row in range(first, end, side):
            for column in range(row, end, side):
                chunk = Chunk(1, self.scan.bins[self.at], row // side, column // side)
                self.scan.read_chunk(chunk, tile)
                at = row - first, column - first
                c2[at[0] : at[0] + side, at[1] : at[1] + side] = tile
        c2 = c2[start - first : stop - first, start - first : stop - first]
        c2 = np.where(np.isnan(c2), c2.T, c2)
        np.fill_diagonal(c2, _diagonal(np.diagonal(c2, 1)))
        return c2

    def shape(self) -> Matrix:
        """Return f."""
        time = self.scan.time[slice(*self.scan.frames)]
        return self.model.shape(np.array([self.at]), time[:, None], time)[0]

    def fit(self) -> Matrix:
        """Return offset + contrast·f."""
        return self.offset + self.contrast * self.shape()

    def residual(self) -> Matrix:
        """Return data - fit."""
        return self.data() - self.fit()

    def normalized(self) -> Matrix:
        """Return residuals divided by sigma(t1, t2)."""
        rows = self.scan.sigma_row[self.at, slice(*self.scan.frames)]
        return self.residual() / np.outer(rows, rows)


def _arrays() -> dict[str, Callable[[BinMatrices], Matrix]]:
    """Return the arrays over all pairs by their names in homodyne."""
    return {
        "c2_exp": BinMatrices.data,
        "c2_theoretical_raw": BinMatrices.shape,
        "c2_theoretical_scaled": BinMatrices.fit,
        "c2_solver_scaled": BinMatrices.fit,
        "residuals": BinMatrices.residual,
        "residuals_normalized": BinMatrices.normalized,
    }


def _diagonal(neighbours: Float[np.ndarray, " m"]) -> Float[np.ndarray, " n"]:
    """Return the mean of the one or two neighbours of each entry of the diagonal."""
    first, last = np.append(neighbours, neighbours[-1]), np.insert(neighbours, 0, neighbours[0])
    return 0.5 * (first + last)
