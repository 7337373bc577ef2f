"""The output files of homodyne, with its file names and keys, in a folder nlsq/."""

import json
import math
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import homodyne_dask as hd
from homodyne_dask.apps.migration.fitted_data import fitted_data_refusal, write_fitted_data
from homodyne_dask.apps.migration.processor_report import get_device_status
from homodyne_dask.results.data.block_means import BinMap, bin_map
from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.fitted_model import fitted_model
from homodyne_dask.results.views.figures.style import UNKNOWN_COLOUR, figure, place
from homodyne_dask.store.files import write_file
from homodyne_dask.store.scan import Scan

if TYPE_CHECKING:
    from homodyne_dask.results.views.figures.picture import FitFigure


STATUS = {hd.Outcome.CONVERGED: "converged", hd.Outcome.MAX_PASSES: "max_iter"}
_PANEL, _BAR = (0.8, (3.0, 3.0)), (3.9, (0.12, 3.0))
"""Inches: left edge, and width and height, of a map and its colour bar."""
GOOD, MARGINAL = 2.0, 5.0
"""Reduced χ² below which homodyne calls a fit good, and marginal."""


def write_homodyne_files(result: FitResult, scan: Scan, folder: Path) -> None:
    """Write the output files of homodyne to a folder; scan: the fitted data."""
    from homodyne_dask.results.views.figures.picture import png_of

    for name, content in json_files(result, scan).items():
        write_file(folder / name, json.dumps(content, indent=2, allow_nan=False) + "\n")
    if fitted_data_refusal(scan) is None:
        write_fitted_data(result, scan, folder / "fitted_data.npz")
    model = fitted_model(result, scan)
    for b, name in enumerate(_figure_names(scan)):
        picture = _heatmaps(bin_map(scan, result, model, b), float(scan.phi[b]))
        write_file(folder / name, png_of(picture, {}))


def json_files(result: FitResult, scan: Scan) -> dict[str, dict[str, object]]:
    """Return the contents of homodyne's three JSON files by name; unknown values are None.

    χ² counts each pair of frames once; that of homodyne counts it twice.
    """
    now, mode = datetime.now().isoformat(), result.config["model"]
    status, seconds = STATUS.get(result.outcome, "failed"), result.run.timings["total"]
    quality, chisqr = _quality(result), _number(result.chisqr)
    # how many tiles a pass reads depends on neither the model nor the workers
    tiles = hd.plan(
        scan, "static", min_lag=result.config["min_lag"], workers="1:1:1TB"
    ).layout.blocks
    batches = {"n_batches": tiles, "success_rate": 1.0}  # every pass counts every block once
    summary = {"iterations": result.passes, "execution_time": seconds, **batches}
    reduced = _number(result.redchi)
    return {
        "parameters.json": {
            "timestamp": now,
            "analysis_mode": mode,
            "chi_squared": chisqr,
            "reduced_chi_squared": reduced,
            "convergence_status": status,
            "parameters": _parameters(result),
        },
        "analysis_results_nlsq.json": {
            "method": "nlsq",
            "timestamp": now,
            "analysis_mode": mode,
            "fit_quality": {
                "chi_squared": chisqr,
                "reduced_chi_squared": reduced,
                "degrees_of_freedom": _degrees_of_freedom(result),
                "quality_flag": quality,
            },
            "dataset_info": {
                "n_angles": result.statistics.nbins,
                "n_time_points": (scan.frames[1] - scan.frames[0]) ** 2,
                "total_data_points": result.ndata,
                "q_value": _number(scan.q[0]),
            },
            "optimization_summary": {"convergence_status": status, **summary},
            "fitted_data": fitted_data_refusal(scan) or "fitted_data.npz",
        },
        "convergence_metrics.json": {
            "convergence": {
                "status": status,
                **summary,
                "final_chi_squared": chisqr,
                "chi_squared_reduction": _reduction(result),
            },
            "recovery_actions": [],
            "quality_flag": quality,
            "device_info": get_device_status(),
            "quality_validation_passed": result.converged,
            "quality_warnings": [*result.undetermined, *result.warnings],
            "quality_checks": {"outcome": result.outcome.value},
        },
    }


def _parameters(result: FitResult) -> dict[str, dict[str, float | None]]:
    """Return value and uncertainty by name; contrast and offset are means over the bins that have one."""
    bins = result.scaling
    there = bins["ndata"].values > 0
    known = {"contrast": there & ~bins["undetermined"].values, "offset": there}
    found: dict[str, dict[str, float | None]] = {
        name: {
            "value": _number(bins[name].values[of].mean()) if of.any() else None,
            "uncertainty": None,
        }
        for name, of in known.items()
    }
    table = result.parameters
    for n, name in enumerate(table["param"].values):
        found[str(name)] = {
            "value": _number(table["value"].values[n]),
            "uncertainty": _number(table["stderr"].values[n]),
            "uncertainty_naive": _number(table["stderr_naive"].values[n]),
        }
    return found


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _degrees_of_freedom(result: FitResult) -> int | None:
    """Return the number by which the fit divided χ²; None where χ² is 0 or not finite."""
    ratio = _number(result.chisqr / result.redchi) if result.redchi else None
    return None if ratio is None else round(ratio)


def _quality(result: FitResult) -> str:
    """Return homodyne's quality flag: good, marginal or poor."""
    at_bounds = int(result.parameters["at_bound"].values.sum())
    if result.redchi < GOOD and at_bounds == 0:
        return "good"
    return "marginal" if result.redchi < MARGINAL and at_bounds <= 2 else "poor"


def _reduction(result: FitResult) -> float | None:
    """Return the relative reduction of χ² from the initial values to the optimum."""
    first = next((h["chisqr"] for h in result.run.history if h.get("chisqr")), None)
    return _number(1 - result.chisqr / first) if first else None


def _figure_names(scan: Scan) -> list[str]:
    """Return the file name of each bin's figure in homodyne, with q where an angle has several."""
    names = [f"c2_heatmaps_phi_{phi:.1f}deg" for phi in scan.phi]
    several = Counter(names)
    found = [
        f"{name}_q_{q:.6g}" if several[name] > 1 else name
        for name, q in zip(names, scan.q, strict=True)
    ]
    if len(set(found)) < len(found):
        found = [f"{name}_{label}" for name, label in zip(found, scan.label, strict=True)]
    return [f"{name}.png" for name in found]


def _heatmaps(view: BinMap, phi: float) -> "FitFigure":
    """Draw data, fit and residual/σ of one bin side by side."""
    from matplotlib import colormaps

    fig = figure(13, 4)
    residual = np.abs(view.residual[np.isfinite(view.residual)])
    reach = max(3.0, float(np.quantile(residual, 0.99))) if len(residual) else 3.0
    known = view.data[np.isfinite(view.data)]
    low, high = np.quantile(known, (0.01, 0.99)) if len(known) else (0.0, 1.0)
    panels = (
        (view.data, f"data, φ = {phi:.1f}°", "cividis", low, high),
        (view.model, "fit", "cividis", low, high),
        (view.residual, "(data - fit) / σ", "RdBu_r", -reach, reach),
    )
    for n, (values, title, shades, least, most) in enumerate(panels):
        axis, bar = (place(fig, 4.2 * n + left, 0.6, *size) for left, size in (_PANEL, _BAR))
        colours = colormaps[shades].with_extremes(bad=UNKNOWN_COLOUR)
        image = axis.pcolorfast(view.edges, view.edges, values, cmap=colours, vmin=least, vmax=most)
        fig.colorbar(image, cax=bar)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("t₁ [s]")
        axis.set_ylabel("t₂ [s]")
    return fig
