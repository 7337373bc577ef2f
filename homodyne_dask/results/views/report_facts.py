"""Facts of a fit and its data, by name: χ², pairs, passes, time, convention, source, versions."""

from math import isfinite
from typing import Any

from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.views import numbers
from homodyne_dask.store.rings import describe_rings

MAX_MINIMA = 5
"""Most minima listed beside the best."""
_MEANING = {
    "physical": "shear enters as sinc²(½ q L cos φ ΔG), the average over the gap of a linear "
    "velocity profile",
    "homodyne": "shear enters as sinc⁴(q L cos φ ΔG / 2π), as in the packages homodyne and "
    "xpcsjax; γ̇ is about 2.22 times that of the physical convention",
}


def facts(result: FitResult) -> list[tuple[str, str]]:
    """Return (name, text) of each fact about the fit and its data."""
    config, inputs, timings = result.config, result.inputs, result.timings
    gap = config.get("gap_angstrom")
    compiled = ", ".join(f"{name} {times}" for name, times in result.compilations.items() if times)
    first, stop = inputs["frames"]
    begin, end = inputs["seconds"]
    others = [f"{name} {number}" for name, number in result.versions.items()]
    return [
        *_cost(result),
        (
            datum(result),
            f"{numbers.format_count(_measured(result))} in {_bins(result)}, each counted once",
        ),
        ("excluded", _excluded(result)),
        ("passes", _passes(result)),
        *([("starts", _minima(result))] if config.get("starts") and result.minima else []),
        ("time", ", ".join(f"{name} {numbers.format_seconds(t)}" for name, t in timings.items())),
        ("compilations", compiled or "none"),
        *(
            [("computed on", f"{on['on']}: {on['why']}")]
            if (on := config.get("computed_on"))
            else []
        ),
        ("convention", f"{config['convention']}: {_meaning(result)}"),
        *([("gap", f"{gap / 1e4:g} um")] if gap is not None else []),
        *([("models", _comparison(result))] if result.comparison else []),
        *([("options", _changed(config))] if config.get("changed") else []),
        ("data", f"{inputs['store']} from {inputs['source_file']} ({inputs['source_format']})"),
        ("SHA-256", f"{inputs['source_sha256'][:16]}..."),
        (
            "frames",
            f"{first} to {stop - 1} of {inputs['frame_time']:g} s, {begin:g} to {end:g} s",
        ),
        ("σ", f"from {inputs['sigma_source']}"),
        *(("note", note) for note in inputs["notes"]),
        ("version", ", ".join([f"homodyne-dask {result.version}", *others])),
    ]


def _comparison(result: FitResult) -> str:
    """Return χ² of the bins left out of each compared model, from the lowest, and the choice."""
    above = [(row["model"], row["above_lowest"]) for row in result.comparison]
    rows = [
        f"{name} {value:.3g}" if value is not None and isfinite(value) else f"{name} -"
        for name, value in above
    ]
    return f"{result.config['model']} was chosen by χ² of bins left out, above the lowest: {', '.join(rows)}"


def _changed(config: dict[str, Any]) -> str:
    """Return the options that differ from their defaults and are shown nowhere else in the report."""
    return "; ".join(f"{name} {_option_value(config[name])}" for name in config["changed"])


def _option_value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_option_value(of)}" for name, of in value.items())
    if isinstance(value, list | tuple):
        return " to ".join(map(_option_value, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _bins(result: FitResult) -> str:
    rings = describe_rings(result.scaling["q"].values)
    return f"{result.nbins} bins" + (f" of {rings}" if rings else "")


def _cost(result: FitResult) -> list[tuple[str, str]]:
    """Return χ², and the loss if there was one."""
    found = f"{result.chisqr:.8g}, reduced {result.redchi:.5f}"
    if result.mean_weight is None:
        return [("χ²", found)]
    loss, scale = (result.config[key] for key in ("loss", "loss_scale"))
    left = f"mean weight of the {datum(result)} {100 * result.mean_weight:.1f} %"
    return [
        ("loss", f"{loss} beyond {scale:g} σ instead of squares, {left}"),
        ("χ²", f"{found}, computed with the loss, here and for each bin"),
    ]


def datum(result: FitResult) -> str:
    """Return what a measurement is: a pair of frames, or the mean over a cell of age and lag."""
    return "cells" if result.inputs.get("cells") else "pairs"


def _measured(result: FitResult) -> int:
    """Return the number of pairs or cells: of data without priors."""
    return result.ndata - len(result.config.get("prior") or {})


def _excluded(result: FitResult) -> str:
    """Return how many pairs of the selection, or cells of the store, were excluded, and why."""
    if cells := result.inputs.get("cells"):
        missing = cells * result.inputs["bins"] - _measured(result)
        return f"{numbers.format_count(missing)} cells unknown or not whole inside the selection"
    first, stop = result.inputs["frames"]
    shortest = result.config["min_lag"]
    possible = (stop - first - shortest) * (stop - first - shortest + 1) // 2
    missing = possible * result.inputs["bins"] - _measured(result)
    words = [f"{numbers.format_count(missing)} pairs masked or unknown"]
    words += [f"{result.inputs['frames_masked']} frames masked"]
    words += ["the diagonal"] if shortest == 1 else [f"lags below {shortest}"]
    return ", ".join(words)


def _passes(result: FitResult) -> str:
    """Return the number of passes at each resolution, and what share of the data they needed."""
    words = [f"{result.passes} over all data"]
    for entry in result.history:
        if "level" in entry:
            more = f" and for {entry['candidates']} initial values" if entry["candidates"] else ""
            words.append(
                f"{entry['passes']} over {numbers.level_name(entry['level'])}{more}, first"
            )
    last = result.history[-1] if result.history else {}
    if last.get("computed", 1.0) < 1.0:
        words.append(
            f"the last computed {100 * last['computed']:.0f} % of the (t₁, t₂) plane and needed "
            f"{100 * last['read']:.0f} % of the chunks: elsewhere f is below 1e-16"
        )
    return "; ".join(words)


def _minima(result: FitResult) -> str:
    """Return the competing minima in which the fits of binned averages ended."""
    best = result.minima[0]
    total = sum(at["starts"] for at in result.minima)
    n = len(result.minima)
    words = [
        f"{total} fits of binned averages ended in {n} {'minimum' if n == 1 else 'competing minima'}"
    ]
    words.append(f"{best['starts']} in that with the lowest χ²")
    for at in result.minima[1 : MAX_MINIMA + 1]:
        where = ", ".join(f"{name} {value:.4g}" for name, value in at["theta"].items())
        words.append(
            f"{at['starts']} where χ² is {at['chisqr'] - best['chisqr']:.4g} higher ({where})"
        )
    if n > MAX_MINIMA + 1:
        words.append("all are in summary.json")
    return "; ".join(words)


def _meaning(result: FitResult) -> str:
    if "phi0" not in result.parameters["param"].values:
        return f"{result.config['model']} has no shear"
    return _MEANING[result.config["convention"]]
