"""`toys`: photons simulated at a fit, and fitted as it was, many times."""

import re
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray
from jaxtyping import Float

from homodyne_dask.apps.posterior.sample_posterior import request_of
from homodyne_dask.cluster.local import cluster_errors, gathered, local_cluster
from homodyne_dask.errors import HomodyneDaskError, OptionError, require_count
from homodyne_dask.fitting.fit import fit
from homodyne_dask.fitting.photons import PhotonScan, detector_of
from homodyne_dask.models import Model
from homodyne_dask.request.options import PAIRS
from homodyne_dask.results.data.fit_rows import quantities_of
from homodyne_dask.results.data.fit_view import fitted_scan
from homodyne_dask.results.data.result_tables import plain_rows
from homodyne_dask.results.data.toys import Toys
from homodyne_dask.results.result_classes import FitResult
from homodyne_dask.store.processes import cores
from homodyne_dask.store.scan import Scan, open_dataset, q_or_one
from homodyne_dask.sweep.admission import checked_workers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distributed import Client

MOST_FRAMES = 5000
"""Of a toy: fields are drawn by a root of their correlation, of frames x frames numbers."""
COLUMNS = ("value", "stderr", "dof")
RATES = ("J", "gamma_dot")
"""At the mean age they are listed, too, where they are not the value of a parameter."""
MIRRORED = re.compile(r"gamma_dot|v_\d")
"""Beginnings of the names of numbers that may all have the other sign, and f is the same."""
FEW = 4
"""Toys up to which no workers are started."""


class _Toy(NamedTuple):
    """What each toy is made of, how it is fitted, and which numbers are compared."""

    names: list[str]
    """Of free parameters, then of rates."""
    age: float
    """s; of the rates."""
    photons: PhotonScan
    model: Model | str
    options: dict[str, Any]
    known_q: bool
    ingest: Callable[..., Any]


def fitted_toys(
    result: FitResult,
    scan: Scan | None,
    ingest: Callable[..., Any],
    *,
    n: int,
    seed: int,
    weighting: str | None,
    detector: dict[str, float | None],
    client: "Client | None",
    progress: Callable[[str], None] | None,
) -> Toys:
    """Return the fits of n scans of photons (see `homodyne_dask.toys`); detector: counts and pixels given."""
    require_count("n", n)
    scan = fitted_scan(result) if scan is None else scan
    toy = _toy(result, scan, ingest, weighting, detector)
    found, outcomes = list[np.ndarray](), list[str]()
    for estimates, outcome in _fits(toy, [seed * 1_000_000 + k for k in range(n)], client):
        found.append(estimates)
        outcomes.append(outcome)
        if progress is not None:
            progress(f"{len(found)} of {n} toys fitted")
    truth, values = _estimates(toy, result)[0], np.stack(found, axis=1)
    values[0] = _unmirrored(toy.names, values[0], truth)
    data = xarray.Dataset(
        {name: (("toy", "param"), of) for name, of in zip(COLUMNS, values, strict=True)}
        | {"truth": ("param", truth)},
        coords={"param": toy.names, "outcome": ("toy", outcomes)},
        attrs={
            "weighting": toy.options["weighting"],
            "model": result.config["model"],
            "pixels": float(toy.photons.pixels.mean()),
            "counts": float(toy.photons.counts.mean()),
            "seed": seed,
        },
    )
    return Toys(data, {n: of for n, of in result.config["periods"].items() if n in toy.names})


def _unmirrored(
    names: list[str], values: Float[np.ndarray, "toy name"], truth: Float[np.ndarray, " name"]
) -> Float[np.ndarray, "toy name"]:
    """Return the values, with the signs of the truth where all that may be mirrored is."""
    signed = np.array([MIRRORED.match(name) is not None for name in names])
    decides = np.array(names) == "gamma_dot" if "gamma_dot" in names else signed
    mirrored = values[:, decides] @ truth[decides] < 0
    return np.where(np.outer(mirrored, signed), -values, values)


def _toy(
    result: FitResult,
    scan: Scan,
    ingest: Callable[..., Any],
    weighting: str | None,
    given: dict[str, float | None],
) -> _Toy:
    request = request_of(result, scan)
    scan, options = request.scan, request.options.values()
    used = ~result.scaling["undetermined"].values & (result.scaling["ndata"].values > 0)
    time = scan.time[slice(*scan.frames)]
    if len(time) > MOST_FRAMES:
        raise OptionError(
            f"toys of {len(time)} frames take too long: select at most {MOST_FRAMES} frames"
        )
    size = detector_of(result, used, given)
    table, age = result.parameters, float(np.mean(result.provenance.inputs["seconds"]))
    names = table["param"].values[~table["fixed"].values].tolist()
    found, known = quantities_of(result, age), table["optimum"].values
    names += [name for name in RATES if name in found and found[name].optimum not in known]
    photons = PhotonScan(
        request.problem, table["optimum"].values.astype(float), time,
        q_or_one(scan)[used], np.nan_to_num(scan.phi[used]),
        np.clip(result.scaling["contrast"].values[used], 1e-4, 1.0), result.scaling["offset"].values[used],
        size["counts"], np.maximum(size["pixels"].round(), 2).astype(int), request.clusters[used],
    )  # fmt: skip
    held = table.isel(param=table["fixed"].values)
    fixed = zip(held["param"].values.tolist(), held["value"].values.tolist(), strict=True)
    options |= {
        "gap": request.problem.gap,
        "fixed": dict(fixed) or None,
        "weighting": weighting or options["weighting"] or PAIRS,
        "precision": "float64",
        "loss_scale": None if options["loss"] == "linear" else options["loss_scale"],
    }
    model = result.provenance.definition or result.config["model"]
    return _Toy(names, age, photons, model, options, bool(np.isfinite(scan.q).all()), ingest)


def fit_toy(toy: _Toy, seed: int) -> tuple[Float[np.ndarray, "3 name"], str]:
    """Simulate, ingest and fit one scan; return COLUMNS of its numbers and its outcome. This is a task."""
    photons = toy.photons
    with tempfile.TemporaryDirectory(prefix="homodyne-dask-toy-") as folder:
        file, store = Path(folder, "toy.npz"), Path(folder, "toy.zarr")
        names = ("phi", "time", "pixels", *["q"] * toy.known_q)
        arrays: dict[str, Any] = {name: getattr(photons, name) for name in names}
        shape = len(photons.q), len(photons.time)
        arrays["counts"] = np.broadcast_to(photons.counts[:, None], shape)
        np.savez(file, allow_pickle=False, c2=photons.c2(seed), **arrays)
        toy.ingest(file, store)
        try:
            result = fit(open_dataset(store), toy.model, **toy.options)
        except HomodyneDaskError as e:
            return np.full((len(COLUMNS), len(toy.names)), np.nan), str(e)
    return _estimates(toy, result), result.outcome.name


def _estimates(toy: _Toy, result: FitResult) -> Float[np.ndarray, "3 name"]:
    """Return COLUMNS of the numbers that are compared."""
    rows = plain_rows(result.parameters, "param")
    rows |= {name: of._asdict() for name, of in quantities_of(result, toy.age).items()}
    keys = ["optimum" if key == "value" else key for key in COLUMNS]  # all have one
    return np.array([[rows[name][key] for name in toy.names] for key in keys], float)


def _fits(
    toy: _Toy, seeds: list[int], client: "Client | None"
) -> "Iterator[tuple[np.ndarray, str]]":
    """Return the fits of toys, in their order: on workers of the client, or on ones started here for many."""
    if client is None and len(seeds) <= FEW:
        yield from map(partial(fit_toy, toy), seeds)
        return
    with ExitStack() as stack:
        if client is None:
            client = stack.enter_context(local_cluster(min(cores(), len(seeds))))
        else:
            stack.enter_context(checked_workers(client))
        with cluster_errors(client):
            whole = client.scatter(toy, hash=False)
            futures = [client.submit(fit_toy, whole, seed, pure=False) for seed in seeds]
        for future in futures:
            yield gathered(client, [future])[0]
