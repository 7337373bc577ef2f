"""Convert a configuration of homodyne or xpcsjax, and compare its result with ours.

Both results are shown in one convention, with why they differ.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas

import homodyne_dask as hd
from homodyne_dask.apps.migration import translate_yaml as homodyne
from homodyne_dask.cli.fit_config import FitConfig, read_yaml
from homodyne_dask.cli.path_arguments import LOCAL_PATH, write_new
from homodyne_dask.cli.printing import echo
from homodyne_dask.document.blocks import Document, as_text, table_document
from homodyne_dask.errors import OptionError, in_line
from homodyne_dask.results.data.numbers_and_intervals import or_dash, value_and_error
from homodyne_dask.results.files.result_folder import default_folder
from homodyne_dask.results.result_classes import FitResult
from homodyne_dask.text import joined_with_and

PARAMETERS = "parameters.json"
SHEAR_RATES = ("gamma_dot_t0", "gamma_dot_t_offset")
PHYSICAL_SHEAR = math.sqrt(2) / math.pi
"""γ̇ of the physical convention over that of homodyne, for small shear."""
SAME = 1e-6
"""Relative difference below which a value is that at which homodyne began, or its bound."""
SMALL_SHARE = 0.8
"""An uncertainty below this share of our error is said to be too small."""


@click.command("from-homodyne")
@click.argument("config", metavar="HOMODYNE.yaml", type=LOCAL_PATH)
@click.option("--output", "-o", type=LOCAL_PATH, help="File to write.")
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@click.option(
    "--compare",
    metavar="RESULTS",
    type=LOCAL_PATH,
    help="Folder of homodyne's results: show them beside those of `fit`, and what explains the difference.",
)
@click.option(
    "--fit",
    metavar="FOLDER",
    type=LOCAL_PATH,
    help="With --compare: folder of the result of `fit`; default: A0123_fit beside the data.",
)
def from_homodyne(
    config: Path, output: Path | None, overwrite: bool, compare: Path | None, fit: Path | None
) -> None:
    """Convert a YAML file of homodyne 2.x or xpcsjax to one for `fit`, with remarks on what differs.

    Without --output, the file goes to standard output, and the remarks go to standard error. When the fit
    is done, --compare shows both results side by side.
    """
    translation = hd.from_homodyne_yaml(config)
    if compare is None:
        if fit is not None:
            raise OptionError("--fit is the result to compare with: give --compare, too")
        if output is None:
            echo(str(translation), err=True)
            echo(translation.yaml(), nl=False)
            return
        write_new(output, translation.yaml(output.parent), overwrite)
        echo(f"{translation}\nthen:  homodyne-dask fit {output}")
        return
    if output is not None or overwrite:
        raise OptionError("--compare writes no file: leave out --output and --overwrite")
    (store,) = translation.config.data
    ours = hd.load_result(fit or default_folder(Path(str(store))))
    echo(as_text(compare_with_homodyne(translation.config, compare, ours)))


def read_homodyne_result(results: Path) -> tuple[pandas.DataFrame, str]:
    """Return value and uncertainty (NaN: none) of each parameter, and how the fit of homodyne ended."""
    places = [results, results / "nlsq" / PARAMETERS, results / PARAMETERS]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise OptionError(f"{results} has no nlsq/{PARAMETERS}: give homodyne's folder of results")
    content = read_yaml(file, "check the name")  # JSON is YAML
    theirs = homodyne.HomodyneYaml(content if isinstance(content, Mapping) else {})
    rows = {}
    for name, row in theirs.read("parameters", dict, {}).items():
        if isinstance(row, Mapping) and "value" in row:
            error = row.get("uncertainty")
            rows[homodyne.ALIASES.get(name, name)] = (
                homodyne.checked(f"{file}: {name}.value", row["value"], homodyne.Finite),
                float(error) if isinstance(error, int | float) and error > 0 else math.nan,
            )
    if not rows:
        raise OptionError(f"{file} has no parameters: give the results of homodyne's --method nlsq")
    table = pandas.DataFrame.from_dict(rows, "index", columns=["value", "uncertainty"])
    return table, in_line(str(theirs.get("convergence_status") or "unknown"))


def compare_with_homodyne(config: FitConfig, results: Path, ours: FitResult) -> Document:
    """Return a table of the parameters of both fits, in the convention of ours, and what explains it."""
    theirs, status = read_homodyne_result(results)
    model, convention = ours.config["model"], ours.config["convention"]
    both: Any = ours.parameters.to_dataframe().join(theirs.add_prefix("their_"), how="inner")
    if both.empty:
        raise OptionError(
            f"{results} has {joined_with_and(list(theirs.index))}, and none of the parameters of {model}: "
            f"give the results of the same configuration"
        )
    # before the conversion: initial values and bounds are in the convention of homodyne
    notes = _on_unmoved(both["their_value"], config)
    converted = [name for name in SHEAR_RATES if name in both.index and convention == "physical"]
    if converted:
        both.loc[converted, ["their_value", "their_uncertainty"]] *= PHYSICAL_SHEAR
        notes.append(
            f"{joined_with_and(converted)} of homodyne are divided by π/√2 = 2.22, as its shear factor is "
            f"another one; at large strain, the factors differ in shape as well."
        )
    share = (both["their_uncertainty"] / both["stderr"]).median()
    if share < SMALL_SHARE:
        notes.append(
            f"The uncertainties of homodyne are {share:.2g} of our standard errors (median): it counts both "
            f"halves of the matrix, and takes pairs that share frames as independent."
        )
    their_scaling, our_scaling = config.scaling, ours.config["scaling"]
    if their_scaling != our_scaling:
        notes.append(
            f"Contrast and offset are {their_scaling} in the configuration of homodyne and {our_scaling} in "
            f"our fit: to see what that changes, fit again with `--scaling {their_scaling}`."
        )
    if status.lower() not in ("converged", "unknown"):
        notes.append(f"The fit of homodyne has not converged: it ended as {status}.")
    difference = (both["their_value"] - both["value"]) / both["stderr"]
    rows = [["parameter", "homodyne", "homodyne_dask", "unit", "difference [stderr]"]]
    for name, row in both.iterrows():
        their_value = value_and_error(row["their_value"], row["their_uncertainty"])
        our_value = value_and_error(row["value"], row["stderr"])
        errors_apart = or_dash(difference[name], "+.1f")
        rows.append([str(name), their_value, our_value, row["unit"], errors_apart])
    caption = f"{model}, values ± errors, in the convention {convention}"
    notes = _distance(ours, difference[np.isfinite(difference)]) + notes
    return table_document(caption, rows, notes=notes)


def _on_unmoved(values: pandas.Series, config: FitConfig) -> list[str]:
    initial = _at(values, {name: [value] for name, value in (config.initial or {}).items()})
    bounded = _at(values.drop(initial), config.bounds or {})
    reasons = {
        "the initial value, from which its fit has not moved.": initial,
        "at a bound, so that others make up for it.": bounded,
    }
    return [f"{joined_with_and(n)} of homodyne: {reason}" for reason, n in reasons.items() if n]


def _distance(ours: FitResult, difference: pandas.Series) -> list[str]:
    """difference: of both fits in each parameter, in standard errors of ours."""
    covariance = ours.errors.covariance
    if covariance is None or difference.empty:
        return []
    compared = covariance.sel(cov_i=difference.index, cov_j=difference.index).values
    error = np.sqrt(np.diag(compared))
    correlation = compared / np.outer(error, error)
    try:
        squared = float(np.dot(difference, np.linalg.solve(correlation, difference)))
    except np.linalg.LinAlgError:  # two parameters that the data do not tell apart
        return []
    if not 0 <= squared < math.inf:  # a covariance that rounding left without an inverse
        return []
    mean = math.sqrt(squared / len(difference))
    return [
        f"The values {'agree' if mean < 2 else 'differ'}: with correlations, they are {mean:.2g} standard "
        f"errors apart in each of {len(difference)} directions (root mean square)."
    ]


def _at(values: pandas.Series, places: Mapping[str, Sequence[float]]) -> list[str]:
    """Return the names of the values that are at one of their places."""
    return [
        str(name)
        for name, value in values.items()
        if any(math.isclose(value, place, rel_tol=SAME) for place in places.get(str(name), ()))
    ]
