"""Several stores in one command: each is fitted, none stops the others, and an index lists them all."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from homodyne_dask.cli.options import selected
from homodyne_dask.cli.program import BAD_INPUT, BUG, NOT_CONVERGED, Interrupted, report, sentence
from homodyne_dask.errors import OptionError

if TYPE_CHECKING:
    from homodyne_dask.config import FitConfig
    from homodyne_dask.models import Model
    from homodyne_dask.report.index import Ended
    from homodyne_dask.result import FitResult

Fit = Callable[[Path, Path, bool], "FitResult"]
"""Fit a store into a folder; resumed or not."""


def fit_all(config: "FitConfig", model: "Model", resume: bool, fit: Fit) -> int:
    """Fit every store, list them in scans.csv and scans.html, and return the worst exit status.

    With `resume`, stores that have a result of the same fit keep it.
    """
    from homodyne_dask.report import index

    folders = _folders(config)
    where = config.output or Path(os.path.commonpath([f.resolve().parent for f in folders]))
    index.claim(where, config.overwrite or resume)
    ended, statuses = [], set()
    for store, folder in zip(config.data, folders, strict=True):
        click.echo(f"\n{store}, {len(ended) + 1} of {len(folders)}", err=True)
        entry, status = _one(config, model, store, folder, resume, fit)
        ended.append(entry)
        statuses.add(status)
        index.write(where, model.names, ended, len(folders))
    click.echo(f"\n{index.in_short(ended, len(ended))}: {where / index.CSV}, {where / index.HTML}")
    return next((s for s in (BUG, BAD_INPUT, NOT_CONVERGED) if s in statuses), 0)


def _folders(config: "FitConfig") -> list[Path]:
    """Return where each result goes: beside its store, or into the folder of `output`."""
    from homodyne_dask.report.folder import default_folder

    beside = [default_folder(store) for store in config.data]
    folders = [config.output / folder.name for folder in beside] if config.output else beside
    for n, folder in enumerate(folders):
        if folder in folders[:n]:
            first = config.data[folders.index(folder)]
            raise OptionError(
                f"{first} and {config.data[n]} would both write {folder}: fit them one by one, "
                f"each with its --output"
            )
    return folders


def _one(
    config: "FitConfig", model: "Model", store: Path, folder: Path, resume: bool, fit: Fit
) -> "tuple[Ended, int]":
    """Return how one store ended, and the exit status it gives; whatever goes wrong with it."""
    from homodyne_dask.report.index import Ended

    try:
        result = _kept(config, model, store, folder) if resume else None
        if result is None:
            result = fit(store, folder, resume and _begun(folder))
    except Interrupted:
        raise
    except Exception as e:  # a bad scan, even one that shows a bug, is no reason to lose the others
        return Ended(store.name, folder, None, sentence(e)), report(e)
    return Ended(store.name, folder, result), 0 if result.converged else NOT_CONVERGED


def _begun(folder: Path) -> bool:
    from homodyne_dask.checkpoint import previous
    from homodyne_dask.report.folder import checkpoint_in

    checkpoint = checkpoint_in(folder)
    return checkpoint.exists() or previous(checkpoint).exists()


def _kept(config: "FitConfig", model: "Model", store: Path, folder: Path) -> "FitResult | None":
    """Return the result a store has already, None where it has none or can go on from a checkpoint.

    Raises OptionError where it is of other data or options.
    """
    from homodyne_dask.report.folder import SUMMARY
    from homodyne_dask.result import load_result

    if _begun(folder) or not (folder / SUMMARY).exists():
        return None
    result, scan = load_result(folder), selected(config, store)
    asked = json.loads(json.dumps(config.fit_options() | {"model": model.name}))
    other = [key for key, value in asked.items() if result.config[key] != value]
    data = {"tiles_sha256": scan.attrs["tiles_sha256"], "frames": list(scan.frames)}
    data["labels"] = scan.label.tolist()
    other += [key for key, value in data.items() if result.inputs[key] != value]
    if other:
        raise OptionError(
            f"{folder} holds a fit with another {other[0]}: give --overwrite, or another --output"
        )
    click.echo(f"{folder}/ holds its result already", err=True)
    return result
