"""A result beside its data: what several figures and files show, computed once."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.errors import SelectionError, StoreError, require_type
from homodyne_dask.results.data.block_means import BinMap, bin_map, representative
from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.fitted_model import FittedModel, decay_times, fitted_model
from homodyne_dask.store.files import AnyPath
from homodyne_dask.store.scan import Cuts, Scan, open_dataset, with_bins


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
        """The model at the parameters of the fit."""
        return fitted_model(self.result, self.scan)

    @cached_property
    def shown(self) -> Int[np.ndarray, " b"]:
        """Positions of the bins of which single figures are drawn, at most four."""
        return representative(self.result, self.scan)

    @cached_property
    def maps(self) -> list[BinMap]:
        """Maps of the bins shown; they are read one after the other."""
        return [bin_map(self.scan, self.result, self.model, int(b)) for b in self.shown]

    @cached_property
    def cuts(self) -> Cuts:
        """c2 averaged over cells of age and lag."""
        return self.scan.cuts(self.result.config["min_lag"])

    @cached_property
    def decay_times(self) -> Float[np.ndarray, " bin"]:
        """The lag [s] at which f of each bin falls to 1/e; NaN where it does not."""
        return decay_times(self.model, self.scan)
