"""homodyne-dask design: the errors that a planned scan will give."""

from pathlib import Path
from typing import Any

import click

import homodyne_dask as hd
from homodyne_dask.cli.printing import AS_JSON, echo, echo_json
from homodyne_dask.cli.shared_options import (
    ANY_PATH,
    LOCAL_PATH,
    STORE,
    Text,
    numbers_of_option,
    values_by_name,
    words,
)
from homodyne_dask.errors import OptionError, in_line
from homodyne_dask.store.files import AnyPath

BETWEEN = 7
"""Values of a quantity that is varied from one number to another."""
WHOLE = ("frames", "angles", "pixels")
REQUIRED = ("model", "q", "frames", "dt", "contrast", "counts", "pixels")


@click.command()
@click.argument("fit", metavar="[FIT]", type=ANY_PATH, required=False)
@click.option("--model", help="Name of the model.", type=Text(tuple(hd.MODELS)))
@click.option(
    "--param", multiple=True, metavar="NAME=VALUE",
    help="Value of a parameter of the model, such as D0=1e4; repeatable.",
)  # fmt: skip
@click.option(
    "--fixed", multiple=True, metavar="NAME", help="Parameter that will not be fitted; repeatable."
)
@click.option("--q", multiple=True, metavar="FLOAT", help="q of each bin [1/Å].")
@click.option("--phi", multiple=True, metavar="FLOAT", help="φ of each bin [°].")
@click.option("--angles", type=click.IntRange(1), help="Number of bins, evenly spaced over 180°.")
@click.option("--frames", type=int, help="Number of frames.")
@click.option("--dt", type=float, help="Time between frames [s].")
@click.option("--contrast", type=float, help="Contrast.")
@click.option("--counts", type=float, help="Mean counts per pixel and frame.")
@click.option("--pixels", type=float, help="Independent pixels per bin.")
@click.option("--gap", help="Distance between the plates, such as '200 um'.")
@click.option(
    "--ages",
    multiple=True,
    metavar="FLOAT",
    help="Ages for which errors of J and γ̇ are printed [s].",
)
@click.option(
    "--vary", metavar="NAME=LOW:HIGH",
    help="Quantity to vary (frames, counts, pixels, contrast, angles or exposure), with a range or values: "
    "frames=100:3000 or frames=100,300.",
)  # fmt: skip
@click.option(
    "--picture",
    type=LOCAL_PATH,
    help="Plot the errors against the varied quantity to this PNG file.",
)
@STORE
@AS_JSON
def design(
    fit: AnyPath | None, store: AnyPath | None, vary: str | None, picture: Path | None, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Predict the standard errors of a planned scan for both weightings.

    The scan is that of the fit in the folder FIT, modified by the options, or is described by the
    options alone. `homodyne-dask explain planning` explains the calculation.
    """
    given = _given(options)
    if vary is not None:
        given["vary"] = _varied(vary)
    if picture is not None and vary is None:
        raise OptionError(
            "--picture needs a quantity to plot the errors against: also give --vary, such as --vary "
            "frames=100:3000"
        )
    if fit is not None:
        found = _like(fit, store, given)
    else:
        found = _planned(given)
    if as_json:
        echo_json(found.to_dict())
    else:
        echo(str(found))
    if picture is not None:
        found.plot().savefig(picture)
        echo(f"\nwritten: {in_line(str(picture))}", err=as_json)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in options.items() if value not in (None, ())}
    for name in {"q", "phi", "ages"} & set(given):
        given[name] = numbers_of_option(name, given[name])
    if "fixed" in given:
        given["fixed"] = words(given["fixed"])
    return given


def _planned(given: dict[str, Any]) -> hd.Design:
    for name in REQUIRED:
        if name not in given:
            raise OptionError(f"--{name} is missing: give it, or the folder of a fit")
    params = values_by_name("param", words(given.pop("param", ())))
    if (angles := given.pop("angles", None)) is not None:
        if "phi" in given:
            raise OptionError("--angles and --phi both set the angles: leave out one of them")
        given["phi"] = [180 / angles * n for n in range(angles)]
    return hd.design(given.pop("model"), params, **given)  # type: ignore[arg-type]


def _like(fit: AnyPath, store: AnyPath | None, given: dict[str, Any]) -> hd.Design:
    from homodyne_dask.cli.result_upload import WITH_STORE
    from homodyne_dask.results.files.saved_results import data_of

    for name in ("model", "param", "angles"):
        if name in given:
            raise OptionError(
                f"--{name} is taken from the fit in {fit}: leave out the option, or the folder"
            )
    result = hd.load_result(fit)
    return hd.design_like(result, data_of(result, fit, WITH_STORE, store), **given)


def _varied(text: str) -> dict[str, list[float]]:
    name, equals, values = text.partition("=")
    low, colon, high = values.partition(":")
    try:
        if not equals:
            raise ValueError
        if not colon:
            return {name: [float(one) for one in values.split(",")]}
        ends = float(low), float(high)
        if not 0 < ends[0] < ends[1]:
            raise ValueError
    except ValueError:
        raise OptionError(
            f"--vary {text!r} is neither NAME=LOW:HIGH nor NAME=VALUE,VALUE: give it in one of these forms, "
            "such as --vary frames=100:3000"
        ) from None
    steps = [ends[0] * (ends[1] / ends[0]) ** (n / (BETWEEN - 1)) for n in range(BETWEEN)]
    found = [float(round(one)) if name in WHOLE else one for one in steps]
    return {name: list(dict.fromkeys(found))}
