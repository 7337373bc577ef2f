"""The section "Posterior" of a report, from the plain values that summary.json holds."""

import math
from collections.abc import Sequence
from typing import Any

from homodyne_dask.apps.posterior.posterior import Posterior
from homodyne_dask.apps.posterior.posterior_summary import (
    nan_if_none,
    why_unreliable,
)
from homodyne_dask.document.blocks import Document, Picture, Pictures, Section, Sentences, Table
from homodyne_dask.results.data import numbers_and_intervals as numbers

MAX_ERROR = 0.05
"""Largest difference of log densities from those of all pairs that is not remarked upon."""


def report_of_posterior(posterior: Posterior) -> Document:
    """Return a posterior in numbers."""
    config, inputs = posterior.result.config, posterior.result.provenance.inputs
    title = f"posterior of {config['model']} fitted to {inputs['store']}"
    return Document(title, [posterior_section(posterior.plain)])


def posterior_section(held: dict[str, Any], pictures: Sequence[Picture] = ()) -> Section:
    """Return quantiles and what to quote, or why the draws are unreliable; what was done."""
    why = why_unreliable(held)
    priors = "; ".join(f"{name} {of['prior']}" for name, of in held["parameters"].items())
    return Section(
        "Posterior",
        [
            Sentences([why]) if why else Table("Quantiles of the posterior", _rows(held), 3),
            Sentences([_adjustment(held), f"priors: {priors}", *_sampling(held)]),
            Pictures(pictures),
        ],
    )


def _rows(held: dict[str, Any]) -> list[list[str]]:
    rows = [["parameter", "mean ± sd", "unit", "2.5 %", "50 %", "97.5 %", "shift", "quote"]]
    for name, of in held["parameters"].items():
        sd, shift = nan_if_none(of["sd"]), nan_if_none(of["shift"])
        ends = numbers.quantiles([of["quantiles"][p] for p in ("2.5", "50", "97.5")], sd)
        if side := of["limit"]:
            limit = numbers.quantiles([of["limit_value"]], sd)[0]
            ends = ["", "", f"< {limit}"] if side == "upper" else [f"> {limit}", "", ""]
            shift = math.nan
        shown = f"{100 * shift:.0f} %" if math.isfinite(shift) else "-"
        mean, quote = numbers.value_and_error(of["mean"], sd), of["quote"] or "-"
        rows.append([name, mean, of["unit"], *ends, shown, quote])
    return rows


def _sampling(held: dict[str, Any]) -> list[str]:
    """Return how the draws were made, and how exact the likelihood is."""
    k, effective = (nan_if_none(held[key]) for key in ("pareto_k", "effective_draws"))
    error, draws = nan_if_none(held["largest_error"]), numbers.format_count(held["draws"])
    made = f"{effective:.0f} effective draws, Pareto k̂ {k:.2f}"
    beyond = f", more than {MAX_ERROR}" * (error > MAX_ERROR)
    return [
        f"{draws} draws by importance sampling ({made}), seed {held['seed']}",
        f"the likelihood of all pairs is interpolated from {held['columns']} basis functions: its logarithm "
        f"differs by at most {error:.2g} from the exact value at the {held['checked']} draws "
        f"compared{beyond}",
    ]


def _adjustment(held: dict[str, Any]) -> str:
    factor, dof = nan_if_none(held["design_effect"]), nan_if_none(held["dof"])
    words = [f"log-likelihood divided by {factor:.3g} on average"] if factor != 1 else []
    if math.isfinite(dof):
        words.append(f"t kernel with {dof:.1f} degrees of freedom")
    return held["adjust_note"].rstrip(".") + (f" ({', '.join(words)})" if words else "")
