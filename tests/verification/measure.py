"""From a row to scans, from scans to fits, and from fits to the line that is printed."""

import time
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import scipy.stats

import homodyne_dask as hd
from tests.verification.cases import Arrays, Row, Setup
from tests.verification.rows import ROWS

GENERAL = ("model-misfit", "model-misfit-shape")
"""Findings of a misfit that name no cause."""
VERDICTS = ("misfit", "not adequate", "disagreement (p < 0.01)", "not reliable")
Value = tuple[float | None, float | None, float | None]
"""Of a parameter: value, stderr and dof; None: unknown."""
HEADER = ("row", "truth", "setting", "n", "expected", "found", "named", "s a scan")


def store_of(arrays: Arrays, setup: Setup, folder: Path) -> hd.Scan:
    """Ingest the arrays of a scan; uneven times need a file."""
    (c2, q, phi, times), options = arrays, dict(setup.read_with)
    spacing = np.diff(times)
    if np.allclose(spacing, spacing[0]):
        options |= {"q": q, "phi": phi, "dt": float(spacing[0])}
        return hd.open_dataset(hd.ingest(c2, folder / "scan.zarr", **options).store)
    np.savez(folder / "scan.npz", c2=c2, q=q, phi=phi, time=times)
    return hd.open_dataset(hd.ingest(folder / "scan.npz", **options).store)


def fitted(scan: hd.Scan, setup: Setup) -> dict[str, Any]:
    result = hd.fit(scan, setup.model, **setup.options)
    params = {name: result.params[name] for name in setup.truth()}
    codes = list(result.findings.at_least("warning").codes)
    return {
        "values": {name: (p.value, p.stderr, p.dof) for name, p in params.items()},
        "codes": codes,
        "frames": [list(each.numbers["frames"]) for each in result.findings.of("frames-differ")],
        "misfit": bool(result.misfit) or "chisqr-too-high" in codes,
        "redchi": float(result.redchi),
    }


def compared(scan: hd.Scan, setup: Setup) -> dict[str, Any]:
    comparison = hd.compare_models(scan, **setup.options)
    return {"chosen": comparison.chosen, "not adequate": not comparison.adequate}


def in_series(scan: hd.Scan, setup: Setup) -> dict[str, Any]:
    """Fit each ring; what the rings say together is measured."""
    series = hd.fit_each(scan, setup.model, over="q", **setup.options)
    mean, power = series.agreement["D0"], series.powers_of_q["Gamma"]
    exponent = (power.exponent, power.stderr, power.dof)
    values = {"D0": (mean.mean, mean.stderr, None), "power of q": exponent}
    return {"values": values, "disagreement (p < 0.01)": bool(mean.p < 0.01)}


def of_rings(scan: hd.Scan, setup: Setup) -> dict[str, Any]:
    """Fit each ring with a D0 of its own, and the rest in common."""
    return jointly(hd.fit_each(scan, setup.model, **setup.options), setup)


def of_scans(scans: list[hd.Scan], setup: Setup) -> dict[str, Any]:
    """Fit several scans as one."""
    return jointly(hd.fit(scans, setup.model, **setup.options), setup)


def jointly(series: hd.FitSeries, setup: Setup) -> dict[str, Any]:
    """Return what a fit in which rings or scans differ says of parameters 'D0 of scan 2' and 'alpha'."""
    values, results = {}, [result for result in series.results if result is not None]
    for name in setup.truth():
        parameter, _, place = name.partition(" of ")
        p = results[int(place.rpartition(" ")[2] or 1) - 1].params[parameter]
        values[name] = p.value, p.stderr, p.dof
    findings = [series.global_fit.findings, *(result.findings for result in results)]
    codes = [code for found in findings for code in found.at_least("warning").codes]
    wrong = any(result.misfit for result in results) or "scans-disagree" in codes
    return {"values": values, "codes": codes, "misfit": wrong}


def in_posterior(scan: hd.Scan, setup: Setup) -> dict[str, Any]:
    """Sample the posterior: half of the widths of its central intervals stand for errors."""
    posterior = hd.posterior(hd.fit(scan, setup.model, **setup.options), scan, draws=1000)
    place = {name: n for n, name in enumerate(posterior.result.parameters["param"].values.tolist())}
    values = {}
    for name in setup.truth():
        low, middle, high = np.quantile(posterior.theta[:, place[name]], [0.1587, 0.5, 0.8413])
        values[name] = float(middle), float(high - low) / 2, None
    return {"values": values, "not reliable": not posterior.reliable}


WAYS = {
    "fit": fitted, "compare": compared, "series": in_series, "rings": of_rings, "scans": of_scans,
    "posterior": in_posterior,
}  # fmt: skip


def measured(name: str, seed: int, number: int) -> dict[str, Any]:
    """Simulate and fit a scan of a row: the same for the same seed and number."""
    rng, setup = np.random.default_rng([seed, zlib.crc32(name.encode()), number]), ROWS[name].setup
    begun = time.perf_counter()
    setups = [setup, *setup.others]
    arrays = [each.scan(rng) for each in setups]
    made = time.perf_counter()
    with TemporaryDirectory() as name_of_folder:
        folders = [Path(name_of_folder) / str(n + 1) for n in range(len(setups))]
        for folder in folders:
            folder.mkdir()
        scans = [*map(store_of, arrays, setups, folders)]
        result = WAYS[setup.way](scans if setup.others else scans[0], setup)
    seconds = {"simulated": made - begun, "fitted": time.perf_counter() - made}
    return {"row": name, "number": number, "seconds": seconds, **result}


def coverage(truth: float, values: Sequence[Value]) -> str:
    """Return how often 68 and 95 % intervals hold the truth, the median and the pulls."""
    numbers = np.array(values, float)
    estimates = numbers[np.isfinite(numbers[:, 0]), 0]
    if not len(estimates):
        return "no value"
    median = f"× {np.median(estimates) / truth:.3f}" if truth else f"{np.median(estimates):+.3g}"
    estimate, stderr, dof = numbers[np.isfinite(numbers[:, :2]).all(1)].T
    if len(estimate) < 2:
        return f"{median}, no error"
    pulls, dof = (estimate - truth) / stderr, np.nan_to_num(dof, nan=np.inf)
    wide = [scipy.stats.t.ppf(0.5 + level / 2, dof) for level in (0.6827, 0.95)]
    held = "/".join(f"{100 * np.mean(np.abs(pulls) < limit):.0f}" for limit in wide)
    without = f", {len(values) - len(pulls)} without error" if len(pulls) < len(values) else ""
    return f"{held} ({median}, pulls {pulls.mean():+.2f} ± {pulls.std(ddof=1):.2f}{without})"


def named_first(row: Row, scan: dict[str, Any]) -> bool:
    """Return whether the first finding that names a cause is the right one, of the right frames."""
    first = next((code for code in scan["codes"] if code not in GENERAL), "")
    if first not in row.causes or row.frames is None:
        return first in row.causes
    (low, high), (begin, end) = row.frames, scan["frames"][0]
    return begin <= low and end >= high and (low - begin) + (end - high) <= 2


def line(row: Row, scans: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Return the cells of a line of the table, in the order of the header."""
    texts = [
        f"{name} {coverage(truth, [scan['values'][name] for scan in scans])}"
        for name, truth in row.setup.truth().items()
    ]
    chosen = Counter(scan["chosen"] for scan in scans if "chosen" in scan)
    texts += [f"{name} {count}" for name, count in chosen.most_common()]
    texts += [f"{name} {sum(s[name] for s in scans)}" for name in VERDICTS if name in scans[0]]
    if max(scan.get("redchi", 0.0) for scan in scans) > 2:
        texts.append(f"reduced χ² {np.median([scan['redchi'] for scan in scans]):.2g}")
    named = [f"right first {sum(named_first(row, s) for s in scans)}"] if row.causes else []
    codes = Counter(code for scan in scans for code in set(scan.get("codes", ())) - set(GENERAL))
    ordered = sorted(codes.items(), key=lambda code: (-code[1], code[0]))
    named += [f"{code} {count}" for code, count in ordered]
    costs = (np.median([s["seconds"][key] for s in scans]) for key in ("simulated", "fitted"))
    cells = (row.name, row.truth, row.setting, str(len(scans)), row.expected)
    return *cells, "; ".join(texts), ", ".join(named), " + ".join(f"{cost:.2f}" for cost in costs)
