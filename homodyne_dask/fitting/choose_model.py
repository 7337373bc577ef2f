"""Which of several models is the simplest adequate one, by angles left out.

Each model is fitted. The score of a bin is its χ² at the parameters that the other bins determine, so that
a model with parameters that the data do not need scores worse (leave-one-out cross-validation, Stone 1974).
Models that do not describe the data (`FitResult.check`) are left out, unless none does. Of the others the
simplest is chosen whose score is not above the lowest by more than the standard error of that difference over
the bins (the rule of one standard error, Breiman et al. 1984).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from distributed import Client

from homodyne_dask.cluster.local import require_client
from homodyne_dask.document.blocks import Document, table_document
from homodyne_dask.document.plain_text import Printed
from homodyne_dask.errors import OptionError, require_type
from homodyne_dask.fitting.callbacks import require_callbacks
from homodyne_dask.fitting.events import Callback
from homodyne_dask.fitting.fit import fit
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.fitting.series.parallel_fits import workers_for
from homodyne_dask.models import (
    BEATING,
    BROWNIAN,
    LAMINAR_FLOW,
    LAMINAR_FLOW_FREE,
    POWER_LAW,
    STATIC,
    STATIC_FREE,
    STRETCHED,
    STRETCHED_Q,
    TWO_COMPONENT,
    Model,
    scan_model,
)
from homodyne_dask.request.options import PAIRS, takes_options
from homodyne_dask.request.request import speckle_clusters
from homodyne_dask.results.data.comparison import ranked, require_independent_bins
from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.number_format import value_and_error
from homodyne_dask.store.scan import Scan, as_scan
from homodyne_dask.text import joined_with_and

FEWEST = 3
"""Rings from which a power of q, and angles from which a velocity, can be told from the rest."""


class ComparedModel(NamedTuple):
    """A row of the comparison."""

    model: str
    outcome: str
    fitted: int
    """Number of parameters of f that were fitted."""
    chisqr: float
    misfit: bool
    """Whether the check of the model says that it does not describe the data."""
    score: float
    """Sum of χ² of the bins left out; NaN for a fit that did not converge."""
    above_lowest: float
    """Score less that of the model with the lowest among those that describe the data."""
    stderr: float
    """Of that difference, from its scatter over independent bins."""
    chosen: bool
    at_bound: tuple[str, ...] = ()
    """Parameters that ended at a bound: the score is that of the model with these values fixed there."""


@dataclass(frozen=True, repr=False)
class ModelComparison(Printed):
    """The fits of several models to one scan, the simplest first. `print(comparison)` is the table."""

    table: tuple[ComparedModel, ...]
    results: dict[str, FitResult]
    """By name of the model."""

    @property
    def chosen(self) -> str:
        """The name of the chosen model."""
        return next(row.model for row in self.table if row.chosen)

    @property
    def result(self) -> FitResult:
        """The fit of the chosen model."""
        return self.results[self.chosen]

    @property
    def adequate(self) -> bool:
        """Whether the chosen model describes the data; otherwise none of those compared does."""
        return not self.result.misfit

    @property
    def sentence(self) -> str:
        """The outcome in words."""
        chosen = next(row for row in self.table if row.chosen)
        if self.adequate:
            words = f"the simplest adequate model is {chosen.model}"
        else:
            words = f"none of these models is adequate: {chosen.model} is the closest"
        return words + self._cost_of_bounds(chosen)

    def _cost_of_bounds(self, chosen: ComparedModel) -> str:
        """Return what it costs that parameters of the chosen fit ended at a bound, '' where none did."""
        if not chosen.at_bound:
            return ""
        table = self.result.parameters
        free = ~(table["fixed"].values | table["at_bound"].values)
        lost = list(map(str, table["param"].values[free & ~np.isfinite(table["stderr"].values)]))
        several, many = len(chosen.at_bound) > 1, len(lost) > 1
        return (
            f"; {joined_with_and(list(chosen.at_bound))} ended at {'bounds' if several else 'a bound'}, and "
            f"the score is that of the model with {'these values' if several else 'this value'} fixed"
            + (f"; {joined_with_and(lost)} {'have' if many else 'has'} no error" if lost else "")
        )

    def _document(self) -> Document:
        head = ["model", "outcome", "parameters", "χ²", "χ² of left-out bins", "above the lowest"]
        return table_document("", [head, *map(_cells, self.table)], 2, [self.sentence])


def _cells(row: ComparedModel) -> list[str]:
    """Return a row of the table; what is unknown is a dash."""
    outcome = row.outcome + ", does not describe the data" * row.misfit
    if row.at_bound:
        outcome += f", with {' and '.join(row.at_bound)} at a bound"
    scored = np.isfinite(row.score)
    above = value_and_error(row.above_lowest, row.stderr) if scored and row.stderr else "-"
    score = f"{row.score:.6g}" if scored else "-"
    return [row.model, outcome, str(row.fitted), f"{row.chisqr:.6g}", score, above]


@takes_options()
def compare_models(
    data: Scan | str | Path,
    models: Sequence[Model | str] | None = None,
    *,
    client: Client | None = None,
    callbacks: Sequence[Callback] = (),
    **options: Any,
) -> ModelComparison:
    """Fit several models and choose the simplest adequate one, by how well they predict bins left out.

    models: models or their names, the simplest first; by default brownian, power_law, static and, if
        the store or `gap` gives the distance between the plates, laminar_flow. If none describes the data,
        also stretched (stretched_q for three or more rings), beating and two_component (for three or more
        angles), and static and laminar_flow with rates without a formula (static_free,
        laminar_flow_free), unless options name parameters or rates.
    client, callbacks: as in `fit`.
    {options}

    Raises SelectionError for fewer than 3 independent bins, OptionError for a loss other than linear, and
    OptionError if no fit converged.

    >>> hd.compare_models("A0123_c2.zarr", ["brownian", "power_law"]).chosen
    'power_law'
    """
    scan = as_scan(data)
    require_client(client)
    require_callbacks(callbacks)
    if options.get("weighting", PAIRS) != PAIRS:
        raise OptionError(
            f"a model comparison is not available with weighting {options['weighting']!r}: fit with "
            f"weighting {PAIRS!r}"
        )
    if options.get("loss", "linear") != "linear":
        raise OptionError("models are compared by least squares: leave out loss, or fit one model")
    clusters = speckle_clusters(scan, options.get("friedel", "on"))
    require_independent_bins(len(np.unique(clusters)))
    if models is not None:
        require_type("models", models, list | tuple, "a list of models, or of their names")
    usual = [BROWNIAN, POWER_LAW, STATIC, *[LAMINAR_FLOW] * _has_gap(scan, options)]
    compared = [scan_model(model) for model in models or usual]
    for model in compared:
        prepare(scan, model, **options)  # mistakes are said before the first fit
    with workers_for([scan], client, 2) as connected:
        more = {"client": connected, "callbacks": callbacks}
        results = {model.name: fit(scan, model, **options, **more) for model in compared}
        if models is None and all(
            found.misfit or not found.converged for found in results.values()
        ):
            further = _further_models(scan, options)
            results |= {model.name: fit(scan, model, **options, **more) for model in further}
    return ModelComparison(_compared(results), results)


def _has_gap(scan: Scan, options: dict[str, Any]) -> bool:
    return options.get("gap") is not None or scan.attrs["gap_angstrom"] is not None


def _further_models(scan: Scan, options: dict[str, Any]) -> list[Model]:
    """Return models of other motions that the bins can tell apart, the simplest first."""
    named = ("initial", "fixed", "bounds", "prior", "profile", "rates")
    if any(options.get(name) for name in named):
        return []
    rings, angles = (np.unique(of[np.isfinite(of)]) for of in (scan.q, scan.phi))
    several = len(rings) >= FEWEST and np.isfinite(scan.q).all()
    apart = bool(len(angles) >= FEWEST and np.isfinite(scan.phi).all())
    return [
        STRETCHED_Q if several else STRETCHED,
        *[BEATING, TWO_COMPONENT] * apart,
        STATIC_FREE,
        *[LAMINAR_FLOW_FREE] * _has_gap(scan, options),
    ]


def _compared(results: dict[str, FitResult]) -> tuple[ComparedModel, ...]:
    """Return the rows; raises OptionError where no score is known."""
    order = ranked(list(results.values()))
    if order is None:
        raise OptionError(
            "none of the compared models converged with parameters that remain determined when bins are "
            "left out: fit one of them separately and see its report"
        )
    return tuple(
        ComparedModel(
            name,
            result.outcome.name,
            int((~result.parameters["fixed"].values).sum()),
            result.chisqr,
            result.misfit,
            float(order.totals[n]),
            float(order.above[n]),
            float(order.stderr[n]),
            n == order.chosen,
            tuple(
                map(str, result.parameters["param"].values[result.parameters["at_bound"].values])
            ),
        )
        for n, (name, result) in enumerate(results.items())
    )
