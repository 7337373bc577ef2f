"""The section "Posterior" of a report, from the plain values that summary.json holds."""

import math
from typing import Any

from homodyne_dask.results.views import numbers

MAX_ERROR = 0.05
"""Largest difference of log densities from those of all pairs that is not remarked upon."""
UNTRUSTED_ERROR = 0.5
"""The same above which draws are not to be trusted: they have the wrong weight by more than half."""
MAX_PARETO_K, MAX_R_HAT = 0.7, 1.05
"""Of importance weights (Vehtari et al. 2024) and of chains, above which draws are not to be trusted."""
HEADING = "Posterior"
ENOUGH = 0.05
"""Shift of the ends of the 95 % interval, in standard errors, up to which those of the fit are enough."""


def posterior_rows(held: dict[str, Any]) -> list[list[str]]:
    """Return the table of quantiles, header first."""
    rows = [["parameter", "mean ± sd", "unit", "2.5 %", "50 %", "97.5 %", "shift"]]
    for name, of in held["parameters"].items():
        sd, shift = _number(of["sd"]), _number(of["shift"])
        ends = numbers.quantiles([of["quantiles"][p] for p in ("2.5", "50", "97.5")], sd)
        shown = f"{100 * shift:.0f} %" if math.isfinite(shift) else "-"
        rows.append([name, numbers.value_and_error(of["mean"], sd), of["unit"], *ends, shown])
    return rows


def posterior_sentences(held: dict[str, Any]) -> list[str]:
    """Return what was done, with which priors, and whether the errors of the fit are enough."""
    priors = "; ".join(f"{name} {of['prior']}" for name, of in held["parameters"].items())
    verdict = [why] if (why := why_unreliable(held)) else enough_sentences(held)
    return [*verdict, _adjustment(held), f"priors: {priors}", *_sampling(held)]


def why_unreliable(held: dict[str, Any]) -> str:
    """Return why the draws are not to be trusted, '' if they are."""
    k, r_hat = _number(held["pareto_k"]), _number(held["r_hat"])
    if held["sampler"] == "nuts" and not r_hat <= MAX_R_HAT:
        return (
            f"these draws are not to be trusted: the chains did not mix (R̂ {r_hat:.3g}, above {MAX_R_HAT}); "
            f"give more --draws or narrower priors, or fix what the data do not determine"
        )
    if held["sampler"] == "importance" and not k <= MAX_PARETO_K:
        return (
            f"these draws are not to be trusted: a few of them have nearly all the weight (Pareto k̂ {k:.2f}, "
            f"above {MAX_PARETO_K}); give more --draws or narrower priors"
        )
    error = _number(held["largest_error"])
    if error > UNTRUSTED_ERROR:
        return (
            f"these draws are not to be trusted: {held['columns']} columns do not give the likelihood where "
            f"they are (its logarithm differs by {error:.2g}); give narrower priors, or fix what the data do "
            f"not determine"
        )
    return ""


def enough_sentences(held: dict[str, Any]) -> list[str]:
    """Return for which parameters the error bars of the fit are enough, and for which they are not."""
    if held["adjust"] == "none":
        return [
            "this is the naive posterior, of uncorrelated noise: it is too narrow, and not compared with the "
            "errors of the fit"
        ]
    known = {n: of for n, of in held["parameters"].items() if of["shift"] is not None}
    enough = [name for name, of in known.items() if of["enough"]]
    other = [n for n, of in known.items() if of["shift"] > ENOUGH + 2 * of["shift_error"]]
    undecided = [name for name in known if name not in (*enough, *other)]
    unknown = [name for name in held["parameters"] if name not in known]
    words = []
    if enough:
        error = 100 * max(known[name]["shift_error"] for name in enough)
        words.append(
            f"the error bars of the fit are enough for {', '.join(enough)}: the ends of the 95 % intervals "
            f"agree to 5 % of stderr (error of an end from the number of draws: up to {error:.0f} %)"
        )
    if other:
        words.append(
            f"they are not enough for {', '.join(other)}: use the interval of the posterior, an end of which "
            f"differs from that of the fit by the shift, in per cent of stderr"
        )
    if undecided:
        error = 100 * max(known[name]["shift_error"] for name in undecided)
        words.append(
            f"whether they are enough for {', '.join(undecided)} is not known from so few draws (error of an "
            f"end: up to {error:.0f} % of stderr)"
        )
    if unknown:
        words.append(f"the fit has no interval of {', '.join(unknown)} to compare with")
    if known and not enough:
        words[0] = words[0].replace("they", "the error bars of the fit", 1)
    return words


def _sampling(held: dict[str, Any]) -> list[str]:
    """Return how the draws were made, and how exact the likelihood is."""
    k, effective, r_hat = (_number(held[key]) for key in ("pareto_k", "effective_draws", "r_hat"))
    error, draws = _number(held["largest_error"]), numbers.format_count(held["draws"])
    if held["sampler"] == "nuts":
        mixed = f"R̂ {r_hat:.3f}, " if math.isfinite(r_hat) else ""
        how = f"{draws} draws in {held['chains']} chains by NUTS ({mixed}{effective:.0f} effective draws)"
    else:
        made = f"{effective:.0f} effective draws, Pareto k̂ {k:.2f}"
        how = f"{draws} draws by importance sampling ({made})"
    beyond = f", more than {MAX_ERROR}" * (error > MAX_ERROR)
    return [
        f"{how}, seed {held['seed']}",
        f"likelihood of all pairs, interpolated from {held['columns']} columns: its logarithm differs by "
        f"at most {error:.2g} from the exact one in {held['checked']} draws{beyond}",
    ]


def _adjustment(held: dict[str, Any]) -> str:
    factor, dof = _number(held["design_effect"]), _number(held["dof"])
    words = [f"log-likelihood divided by {factor:.3g} on average"] if factor != 1 else []
    if math.isfinite(dof):
        words.append(f"t kernel of {dof:.1f} degrees of freedom")
    return held["adjust_note"].rstrip(".") + (f" ({', '.join(words)})" if words else "")


def _number(value: float | None) -> float:
    return math.nan if value is None else value
