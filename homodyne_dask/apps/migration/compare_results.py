"""The result of homodyne beside ours of the same configuration, in one convention, and why they differ."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from homodyne_dask.apps.migration.translate_yaml import (
    ALIASES,
    HomodyneYaml,
    Translation,
    finite_number,
)
from homodyne_dask.cli.fit_config import read_yaml
from homodyne_dask.document.blocks import Document, Section, Sentences, Table
from homodyne_dask.errors import OptionError, in_line
from homodyne_dask.results.data.numbers_and_intervals import or_dash, value_and_error
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


def read_homodyne_result(results: Path) -> tuple[dict[str, tuple[float, float]], str]:
    """Return value and uncertainty (NaN: none) of each parameter, and how the fit of homodyne ended."""
    places = [results, results / "nlsq" / PARAMETERS, results / PARAMETERS]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise OptionError(
            f"{results} contains no nlsq/{PARAMETERS}: give the folder of homodyne's results"
        )
    content = read_yaml(file, "check the name")  # JSON is YAML
    held = HomodyneYaml(content if isinstance(content, Mapping) else {})
    rows = held.collection("parameters", dict)
    if not rows:
        raise OptionError(f"{file} has no parameters: give the results of homodyne's --method nlsq")
    found = {}
    for name, row in rows.items():
        if isinstance(row, Mapping) and "value" in row:
            error = row.get("uncertainty")
            found[ALIASES.get(name, name)] = (
                finite_number(f"{file}: {name}.value", row["value"]),
                float(error) if isinstance(error, int | float) and error > 0 else math.nan,
            )
    return found, in_line(str(held.get("convergence_status") or "unknown"))


def compare_with_homodyne(translation: Translation, results: Path, ours: FitResult) -> Document:
    """Return a table of the parameters of both fits, in the convention of ours, and what explains it."""
    theirs, status = read_homodyne_result(results)
    table = ours.parameters.to_dataframe()
    names = [name for name in table.index if name in theirs]
    if not names:
        raise OptionError(
            f"{results} has {joined_with_and(list(theirs))}, and none of the parameters of "
            f"{ours.config['model']}: give the results of the same configuration"
        )
    physical = ours.config["convention"] == "physical"
    factors = {name: PHYSICAL_SHEAR if physical and name in SHEAR_RATES else 1.0 for name in names}
    rows = [["parameter", "homodyne", "homodyne_dask", "unit", "difference [stderr]"]]
    off = {}
    for name in names:
        (value, error), row = theirs[name], table.loc[name]
        value, error = value * factors[name], error * factors[name]
        off[name] = (value - row["value"]) / row["stderr"]
        both = value_and_error(value, error), value_and_error(row["value"], row["stderr"])
        rows.append([name, *both, row["unit"], or_dash(off[name], "+.1f")])
    said = _distance(ours, off)
    if converted := [name for name, factor in factors.items() if factor != 1]:
        said.append(
            f"{joined_with_and(converted)} of homodyne are divided by π/√2 = 2.22, as its shear factor is "
            f"another one; at large strain, the factors differ in shape as well."
        )
    said += _of_values(translation, theirs, names) + _of_errors(theirs, factors, ours)
    asked, used = translation.config.scaling, ours.config["scaling"]
    if asked != used:
        said.append(
            f"Contrast and offset are {asked} in the configuration of homodyne and {used} in our fit: to see "
            f"what that changes, fit again with `--scaling {asked}`."
        )
    if status.lower() not in ("converged", "unknown"):
        said.append(f"The fit of homodyne has not converged: it ended as {status}.")
    model, convention = ours.config["model"], ours.config["convention"]
    caption = f"{model}, values ± errors, in the convention {convention}"
    return Document("", [Section("", [Table(caption, rows), Sentences(said)])])


def _distance(ours: FitResult, off: Mapping[str, float]) -> list[str]:
    """Return how far the values of homodyne are from ours, correlations included."""
    covariance = ours.errors.covariance
    known = [name for name, apart in off.items() if math.isfinite(apart)]
    if covariance is None or not known:
        return []
    inside = covariance.sel(cov_i=known, cov_j=known).values
    error = np.sqrt(np.diag(inside))
    apart = np.array([off[name] for name in known])
    squared = float(apart @ np.linalg.solve(inside / np.outer(error, error), apart))
    mean = math.sqrt(squared / len(known)) if squared >= 0 else math.nan
    if not math.isfinite(mean):
        return []
    word = "agree" if mean < 2 else "differ"
    return [
        f"The values {word}: with correlations, they are {mean:.2g} standard errors apart in each of "
        f"{len(known)} directions (root mean square)."
    ]


def _of_values(
    translation: Translation, theirs: Mapping[str, tuple[float, float]], names: list[str]
) -> list[str]:
    config = translation.config
    start, bounds = config.initial or {}, config.bounds or {}

    def at(name: str, value: object) -> bool:
        return isinstance(value, float) and math.isclose(theirs[name][0], value, rel_tol=SAME)

    still = [name for name in names if at(name, start.get(name))]
    moved = [name for name in names if name not in still]
    ends = [name for name in moved if any(at(name, end) for end in bounds.get(name, ()))]
    said = []
    if still:
        said.append(
            f"{joined_with_and(still)} of homodyne: the initial value, from which its fit has not moved."
        )
    if ends:
        said.append(
            f"{joined_with_and(ends)} of homodyne: at a bound, so that others make up for it."
        )
    return said


def _of_errors(
    theirs: Mapping[str, tuple[float, float]], factors: Mapping[str, float], ours: FitResult
) -> list[str]:
    table = ours.parameters.to_dataframe()
    shares = [theirs[n][1] * factors[n] / table.loc[n, "stderr"] for n in factors]
    known = [share for share in shares if math.isfinite(share)]
    if not known or np.median(known) > SMALL_SHARE:
        return []
    return [
        f"The uncertainties of homodyne are {float(np.median(known)):.2g} of our standard errors (median): "
        f"it counts both halves of the matrix, and takes pairs that share frames as independent."
    ]
