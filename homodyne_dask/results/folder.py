"""The folder of a result: summary.json, tables, report and figures, written atomically."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from homodyne_dask.errors import OptionError
from homodyne_dask.results.csv_tables import parameters_csv, scaling_csv
from homodyne_dask.results.export import write_netcdf
from homodyne_dask.results.figures.captions import TITLES, alternative
from homodyne_dask.results.fit_result import FORMAT, FitResult
from homodyne_dask.results.html import Picture, report_page
from homodyne_dask.results.text import report_text
from homodyne_dask.solver import checkpoint as checkpoints
from homodyne_dask.solver.levenberg_marquardt import Outcome
from homodyne_dask.store.scan import Scan

SUMMARY, CHECKPOINT = "summary.json", "checkpoint.json"


_HEAD_BYTES = 1000
"""Bytes at the beginning of a summary that name its format."""


def default_folder(store: Path, over: str | None = None) -> Path:
    """Return the default folder of the result of a store: A0123_c2.zarr → A0123_fit, beside it.

    over: q or age, for the results of its parts: A0123_fit_q.
    """
    name = store.name.removesuffix(".zarr").removesuffix("_c2") + "_fit"
    return store.parent / (f"{name}_{over}" if over else name)


def checkpoint_in(folder: Path) -> Path:
    """Return the default checkpoint of a fit that writes to `folder`."""
    return folder / CHECKPOINT


@contextmanager
def claimed_folder(folder: Path, checkpoint: Path, overwrite: bool, resume: bool) -> Iterator[None]:
    """Create the folder; one that is still empty at the end of the `with` is removed.

    Raises OptionError if it holds something that would be lost.
    """
    check_folder(folder, checkpoint, overwrite, resume)
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        if made and not any(folder.iterdir()):
            folder.rmdir()


def check_folder(folder: Path, checkpoint: Path, overwrite: bool, resume: bool) -> None:
    """Raise OptionError if a folder holds something that a fit would overwrite."""
    if folder.exists() and not folder.is_dir():
        raise OptionError(f"{folder} is a file: give another --output")
    if folder.is_symlink():
        raise OptionError(
            f"{folder} is a link to {folder.resolve()}: give that folder as --output, or another one"
        )
    if checkpoints.checkpoint_exists(checkpoint) and not (overwrite or resume):
        raise OptionError(
            f"{checkpoint} is of an interrupted fit: give --resume to go on, --overwrite to start "
            f"again, or another --output"
        )
    present = folder.iterdir() if folder.exists() else ()
    if all(".partial" in path.name for path in present):  # what a killed fit left, or nothing
        return
    if not (_is_summary(folder / SUMMARY) or checkpoints.checkpoint_exists(checkpoint)):
        raise OptionError(f"{folder} holds files that are no result: give another --output")
    if (folder / SUMMARY).exists() and not (overwrite or resume):
        raise OptionError(f"{folder} exists: give --overwrite to replace it, or another --output")


def _is_summary(file: Path) -> bool:
    """Return whether a file is the summary of a result, damaged perhaps; a link is none."""
    if file.is_symlink() or not file.is_file():
        return False
    with file.open("rb") as opened:
        return FORMAT.encode() in opened.read(_HEAD_BYTES)


def write_result(result: FitResult, scan: Scan, folder: Path) -> list[Path]:
    """Write a result into its folder and return the files, summary.json last.

    Everything is written to a temporary folder first; a failure leaves the folder unchanged.
    """
    from homodyne_dask.results.figures.save import save_all

    with tempfile.TemporaryDirectory(prefix=".partial-", dir=folder) as aside:
        there = Path(aside)
        (there / "parameters.csv").write_text(parameters_csv(result))
        (there / "scaling.csv").write_text(scaling_csv(result))
        (there / "report.txt").write_text(report_text(result) + "\n")
        pictures = [
            Picture(TITLES[path.stem], alternative(path.stem, result, scan), path.read_bytes())
            for path in save_all(result, scan, there)
        ]
        (there / "report.html").write_text(report_page(result, pictures))
        write_netcdf(result, scan, there / "result.nc")
        result.to_json(there / SUMMARY)
        (folder / SUMMARY).unlink(missing_ok=True)
        for picture in TITLES:
            (folder / f"{picture}.png").unlink(missing_ok=True)
        names = sorted(
            (path.name for path in there.iterdir()), key=lambda name: (name == SUMMARY, name)
        )
        return [(there / name).replace(folder / name) for name in names]


def remove_checkpoint(result: FitResult, checkpoint: Path) -> None:
    """Remove the checkpoint of a finished fit, but not of one at its limit of passes, which can resume."""
    if result.outcome is not Outcome.MAX_PASSES:
        for file in checkpoints.checkpoint_files(checkpoint):
            file.unlink(missing_ok=True)
