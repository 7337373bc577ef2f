"""A result beside its data: the fitted model at any times, and what several figures and files show."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.errors import SelectionError, StoreError, require_type
from homodyne_dask.kernels.backend import evaluation_of
from homodyne_dask.kernels.backend_interface import ModelPoint
from homodyne_dask.kernels.problem import Problem
from homodyne_dask.models import convention_named
from homodyne_dask.models.transport import frame_spacing
from homodyne_dask.results.data.block_means import BinMap, bin_map, representative
from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.solver.state import Outcome
from homodyne_dask.store.files import AnyPath
from homodyne_dask.store.scan import Cuts, Scan, open_dataset, q_or_one, with_bins

DECAY_POINTS = 400
"""Lags at which f is evaluated to find its decay time."""


def fitted_scan(result: FitResult, store: AnyPath | None = None) -> Scan:
    """Return the data of a fit: its bins and frames, from a store, by default from where it was.

    Raises StoreError where the store is no longer there, or has changed.
    """
    where = store or result.provenance.inputs["store_path"]
    scan = open_dataset(where)
    if scan.digest != result.provenance.inputs["store_sha256"]:
        raise StoreError(
            f"{where} has changed since the fit: fit again, or give the scan in its original state"
        )
    return as_selected(scan, result)


def as_selected(scan: Scan, result: FitResult) -> Scan:
    """Return the bins and frames of a store that were fitted; raises SelectionError where it lacks them."""
    inputs = result.provenance.inputs
    chosen = with_bins(scan, inputs["labels"], inputs.get("scans"))
    without = {"frames": inputs["frames_excluded"] or None}
    return chosen.select(frames=tuple(inputs["frames"]), exclude=without)


@dataclass(frozen=True)
class FittedModel:
    """A model with its parameters, on the times and bins of a scan."""

    at: ModelPoint
    time: Float[np.ndarray, " t"]
    """s, all frames of the store."""
    q: Float[np.ndarray, " bin"]
    phi: Float[np.ndarray, " bin"]

    def shape(
        self,
        bins: Int[np.ndarray, " b"],
        t1: Float[np.ndarray, "..."],
        t2: Float[np.ndarray, "..."],
    ) -> Float[np.ndarray, "b ..."]:
        """Return f of some bins at times that broadcast together; between frames f is interpolated."""
        f_at = evaluation_of(self.at.problem.model).f_at
        return f_at(self.at, self.time, self.q[bins], self.phi[bins], t1, t2)

    def slopes(
        self,
        bins: Int[np.ndarray, " b"],
        t1: Float[np.ndarray, "..."],
        t2: Float[np.ndarray, "..."],
    ) -> Float[np.ndarray, "b p ..."]:
        """Return the derivatives of f by the parameters at such times."""
        both = evaluation_of(self.at.problem.model).f_and_derivatives_at
        return both(self.at, self.time, self.q[bins], self.phi[bins], t1, t2)[1]


@dataclass(frozen=True)
class FitView:
    """A result and the scan that was fitted; raises SelectionError where the scan has other bins.

    OptionError for what is not a scan.
    """

    result: FitResult
    scan: Scan

    def __post_init__(self) -> None:
        require_type("scan", self.scan, Scan, "the scan that was fitted")
        fitted, given = self.result.scaling["label"].values, self.scan.label
        scans = self.result.provenance.inputs.get("scans", [1] * len(given))
        if not np.array_equal(fitted, given) or not np.array_equal(scans, self.scan.scan_number):
            raise SelectionError(
                f"the result is for {len(fitted)} bins (labels {fitted[0]} to {fitted[-1]}), but the scan "
                f"has {len(given)} (labels {given[0]} to {given[-1]}): give the selection that was fitted"
            )

    @cached_property
    def model(self) -> FittedModel:
        """The model at the parameters of the fit.

        Where no decay was seen they have no value: the model then is that of the last pass, times a contrast
        of 0.
        """
        result, scan = self.result, self.scan
        theta = result.parameters["value"].values
        if result.outcome is Outcome.NO_DECAY:
            theta = np.array(result.run.history[-1]["theta"])
        model, convention = (
            result.provenance.fitted_model(),
            convention_named(result.config["convention"]),
        )
        problem = Problem(model, convention, result.config["gap_angstrom"])
        point = evaluation_of(model).point(problem, theta, scan.time)
        return FittedModel(point, scan.time, q_or_one(scan), scan.phi)

    def at_angles(self, q: float, phi: Float[np.ndarray, " n"]) -> FittedModel:
        """Return the model with bins at any angles of one ring."""
        return FittedModel(self.model.at, self.scan.time, np.full(len(phi), q), phi)

    @cached_property
    def shown(self) -> Int[np.ndarray, " b"]:
        """Positions of the bins of which single figures are drawn, at most four."""
        return representative(self.result, self.scan)

    @cached_property
    def maps(self) -> list[BinMap]:
        """Maps of the bins shown; they are read one after the other."""
        return [bin_map(self, int(b)) for b in self.shown]

    @cached_property
    def cuts(self) -> Cuts:
        """c2 averaged over cells of age and lag."""
        return self.scan.cuts(self.result.config["min_lag"])

    @cached_property
    def decay_times(self) -> Float[np.ndarray, " bin"]:
        """The lag [s] at which f of each bin falls to 1/e; NaN where it does not."""
        return decay_times(self.model, self.scan)


def view_of(result: FitResult, scan: Scan | None = None) -> FitView:
    """Return a result beside its data, which are opened where they were if no scan is given."""
    return FitView(result, fitted_scan(result) if scan is None else scan)


def decay_times(model: FittedModel, scan: Scan) -> Float[np.ndarray, " bin"]:
    """Return the lag [s] at which f of each bin of the model first falls to 1/e, at the age in the middle.

    NaN where f stays above 1/e to the end of the selected frames.
    """
    first, last = scan.time[scan.frames[0]], scan.time[scan.frames[1] - 1]
    middle = 0.5 * (first + last)
    shortest = 1e-3 * frame_spacing(scan.time)
    lag = np.concatenate([[0.0], np.geomspace(shortest, last - middle, DECAY_POINTS)])
    f = model.shape(np.arange(len(model.q)), np.array([middle]), middle + lag)
    times, level = np.full(len(f), np.nan), np.exp(-1)
    for b, row in enumerate(f):
        n = int(np.argmax(row < level))
        if n > 0:
            share = (row[n - 1] - level) / (row[n - 1] - row[n])
            times[b] = lag[n - 1] + share * (lag[n] - lag[n - 1])
    return times
