"""What two results must have in common, bit by bit."""

import json
from pathlib import Path
from typing import Any

from homodyne_dask.results.data.fit_result import FitResult


def result_bits(result: FitResult) -> tuple[Any, ...]:
    """All that must be the same whoever computes it."""
    passed = [h for h in result.run.history if "pass" in h]
    return (
        result.outcome,
        result.passes,
        result.chisqr.hex(),
        result.parameters["value"].values.tobytes(),
        result.errors.covariance_naive.values.tobytes()
        if result.errors.covariance_naive is not None
        else None,
        result.scaling["contrast"].values.tobytes(),
        [(h["pass"], h["theta"], h["chisqr"], h["damping"], h["accepted"]) for h in passed],
    )


def folder_bits(folder: Path) -> dict[str, Any]:
    """Return all of a result but the seconds it took."""
    read = json.loads((folder / "summary.json").read_text())
    passed = [
        {key: entry.get(key) for key in ("pass", "theta", "chisqr", "damping", "accepted", "level")}
        for entry in read["history"]
    ]
    kept = ("outcome", "parameters", "covariance", "covariance_naive", "scaling_per_bin", "chisqr")
    return {key: read[key] for key in (*kept, "passes", "ndata", "undetermined")} | {"all": passed}
