"""A checked request for a fit: data, model, search and options."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Int

from homodyne_dask.errors import OptionError
from homodyne_dask.kernels.backend_interface import Problem
from homodyne_dask.models.derived_models import FROZEN, FROZEN_FRACTION
from homodyne_dask.models.parameters import Parameter, Search
from homodyne_dask.request.option_types import gap_in_angstrom
from homodyne_dask.request.options import FitOptions
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.scaling_modes import Scaling
from homodyne_dask.store.scan import Scan
from homodyne_dask.sweep.plan import Device

_DECREMENT_OF_TABLES = 1e-8
"""Distance from the optimum in standard errors that ends a fit of a table, whose passes are short."""


@dataclass(frozen=True)
class Request:
    scan: Scan
    problem: Problem
    search: Search
    parameters: tuple[Parameter, ...]
    scaling: Scaling
    options: FitOptions
    """As used: names of scaling modes, priors, contrast, offset and loss_scale are resolved."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What was chosen for the fit besides its options: the device, and where averages are from."""
    raw: Scan | None = None
    """The data as measured, which have the noise, where those that are fitted were denoised."""
    others: tuple[Scan, ...] = ()
    """Scans of other stores that are fitted together with this one, whose bins follow."""

    @property
    def solver(self) -> lm.SolverOptions:
        options = lm.SolverOptions(max_passes=self.options.max_passes)
        return replace(options, decrement=_DECREMENT_OF_TABLES) if self.scan.is_table else options

    @property
    def clusters(self) -> Int[np.ndarray, " bin"]:
        numbers, number_of_next = [], 0
        for scan in (self.scan, *self.others):
            numbers.append(number_of_next + speckle_clusters(scan, self.options.friedel))
            number_of_next = int(numbers[-1].max()) + 1
        return np.concatenate(numbers)

    @property
    def sum_rounding(self) -> float:
        return self.problem.sum_rounding

    @property
    def gap_angstrom(self) -> float | None:
        """That of the option or of the store, also for a model that does not need it."""
        return gap_of(self.options, self.scan)

    @property
    def config(self) -> dict[str, Any]:
        """The options and what follows from them, as a checkpoint and a result store it."""
        model, stored = self.problem.model, self.scan.attributes.gap_angstrom is not None
        return {
            **self.options.values(),
            "model": model.name,
            "model_digest": model.digest,
            "periods": {p.name: p.period for p in self.parameters if p.period is not None},
            "gap_angstrom": self.gap_angstrom,
            "gap_from": "stored with the data" if stored else "option gap",
            "changed": self.options.changed(),
            "splines": {name: asdict(form) for name, form in model.splines.items()},
            **self.notes,
        }

    def with_note(self, name: str, value: Any) -> "Request":
        return replace(self, notes={**self.notes, name: value})

    def computed_on(self, device: Device) -> "Request":
        note = {"name": device.name, "on": str(device.gpus or "CPU"), "why": device.why}
        return self.with_note("computed_on", note)

    def require_given(self) -> None:
        """Raise OptionError where a model lacks its gap, or a frozen part an offset; a plan needs neither."""
        self.problem.model.require_gap(self.problem.gap, "--gap '200 um'")
        free = np.array(self.search.names)[self.search.free]
        is_frozen = FROZEN.name in self.problem.model.name and FROZEN_FRACTION in free
        # c2 shows only what a frozen part and a free offset are together
        if is_frozen and not (self.options.offset or FROZEN_FRACTION in (self.options.prior or {})):
            raise OptionError(
                f"{self.problem.model.name} has a frozen part, which a free offset would take: give offset = "
                f"'prior=1:0.001' where c2 without correlation is 1 (a standard deviation of 0.5 % of the "
                f"contrast)"
            )


def gap_of(options: FitOptions, scan: Scan) -> float | None:
    """Return the gap in Å; raises OptionError where the option contradicts the store."""
    stored = scan.attributes.gap_angstrom
    if options.gap is None:
        return stored
    gap = gap_in_angstrom(options.gap)
    if stored is not None and not np.isclose(gap, stored):
        raise OptionError(
            f"gap = {options.gap!r}, but {scan.path} was ingested with a gap of {stored / 1e4:g} um: leave "
            f"it out, or ingest again with the right gap"
        )
    return gap


def speckle_clusters(scan: Scan, friedel: str) -> Int[np.ndarray, " bin"]:
    """Return a cluster number per bin: bins that are Friedel pairs have one, unless friedel is off."""
    return scan.clusters if friedel == "on" else np.arange(len(scan.bins))
