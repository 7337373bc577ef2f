"""Predict the errors of a planned scan."""

from pathlib import Path
from typing import Any

import click
import numpy as np

import homodyne_dask as hd
from homodyne_dask.apps.design.errors_of_plan import MOST_BINS
from homodyne_dask.cli import path_arguments as paths
from homodyne_dask.cli.fit_config import MODELS, LocalPath
from homodyne_dask.cli.printing import AS_JSON, echo_found
from homodyne_dask.cli.shared_options import given_of, options_of
from homodyne_dask.errors import OptionError
from homodyne_dask.request.option_types import Count, Names, Number, NumberByName, Numbers
from homodyne_dask.request.options import Options, option
from homodyne_dask.results.saved_results import data_of
from homodyne_dask.store.files import AnyPath

BETWEEN = 7
"""Values of a quantity that is varied from one number to another."""
REQUIRED = ("model", "q", "frames", "dt", "contrast", "counts", "pixels")


class DesignOptions(Options):
    """A planned scan, by the names of `hd.design`."""

    model: str | None = option(None, suggestions=MODELS[:-1])
    """Name of the model."""
    param: NumberByName = option(None, example="{D0: 1e4}")
    """Value of a parameter of the model."""
    fixed: Names = option(())
    """Parameter that will not be fitted."""
    q: Numbers = option(None)
    """q of each bin [1/Å]."""
    phi: Numbers = option(None)
    """φ of each bin [°]."""
    angles: Count | None = option(None)
    """Number of bins, evenly spaced over 180°."""
    frames: int | None = option(None)
    """Number of frames."""
    dt: Number | None = option(None)
    """Time between frames [s]."""
    contrast: Number | None = option(None)
    """Contrast."""
    counts: Number | None = option(None)
    """Mean counts per pixel and frame."""
    pixels: Number | None = option(None)
    """Independent pixels per bin."""
    gap: str | None = option(None)
    """Distance between the plates, such as '200 um'."""
    ages: Numbers = option(None)
    """Ages for which errors of J and γ̇ are printed [s]."""
    vary: str | None = option(None, example="frames=100:3000")
    """Quantity to vary (frames, counts, pixels, contrast, angles or exposure), with a range or values:
    frames=100:3000 or frames=100,300."""
    picture: LocalPath | None = option(None)
    """Plot the errors against the varied quantity to this PNG file."""


@click.command()
@click.argument("fit", metavar="[FIT]", type=paths.LOCAL_PATH, required=False)
@options_of(DesignOptions)
@paths.STORE
@paths.OVERWRITE
@AS_JSON
def design(
    fit: Path | None, store: AnyPath | None, overwrite: bool, as_json: bool, **options: Any
) -> None:
    """Predict the standard errors of a planned scan for both weightings.

    The scan is that of the fit in the folder FIT, modified by the options, or is described by the
    options alone. `homodyne-dask explain planning` explains the calculation.
    """
    settings = DesignOptions(**given_of(options))
    arguments, picture = given_of(settings.model_dump(exclude={"picture"})), settings.picture
    paths.check_new(picture, overwrite, paths.PICTURES)
    if "vary" in arguments:
        arguments["vary"] = _varied(arguments["vary"])
    elif picture is not None:
        raise OptionError(
            "--picture needs a quantity to plot the errors against: also give --vary, such as --vary "
            "frames=100:3000"
        )
    plan = _planned(arguments) if fit is None else _like(fit, store, arguments)
    echo_found(plan, as_json, picture)


def _planned(arguments: dict[str, Any]) -> hd.Design:
    for name in REQUIRED:
        if name not in arguments:
            raise OptionError(f"--{name} is missing: give it, or the folder of a fit")
    params = arguments.pop("param", {})
    if (angles := arguments.pop("angles", None)) is not None:
        if "phi" in arguments:
            raise OptionError("--angles and --phi both set the angles: leave out one of them")
        arguments["phi"] = [180 / angles * n for n in range(min(angles, MOST_BINS + 1))]
    return hd.design(arguments.pop("model"), params, **arguments)  # type: ignore[arg-type]


def _like(fit: Path, store: AnyPath | None, arguments: dict[str, Any]) -> hd.Design:
    for name in ("model", "param", "angles"):
        if name in arguments:
            raise OptionError(
                f"--{name} is taken from the fit in {fit}: leave out the option, or the folder"
            )
    result = hd.load_result(fit)
    return hd.design_like(result, data_of(result, fit, paths.WITH_STORE, store), **arguments)


def _varied(text: str) -> dict[str, list[float]]:
    name, _, values = text.partition("=")
    try:
        numbers = [float(value) for value in values.replace(":", ",").split(",")]
        if ":" in values:
            low, high = numbers
            if not 0 < low < high:
                raise ValueError
            numbers = np.geomspace(low, high, BETWEEN).tolist()
    except ValueError:
        raise OptionError(
            f"--vary {text!r} is neither NAME=LOW:HIGH nor NAME=VALUE,VALUE: give it in one of these forms, "
            "such as --vary frames=100:3000"
        ) from None
    if ":" in values and name in ("frames", "angles", "pixels"):
        numbers = np.round(numbers).tolist()
    return {name: list(dict.fromkeys(numbers))}
