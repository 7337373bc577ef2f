"""`compare`: finished fits to the same data, by the scores that their results keep; no data are read."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from homodyne_dask.errors import OptionError, require_type, shown
from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.model_ranking import (
    ComparedFit,
    Comparison,
    Ranking,
    ranked,
    require_independent_bins,
)
from homodyne_dask.results.files.load_result import load_result
from homodyne_dask.store.url_path import UrlPath

Fit = FitResult | str | Path | UrlPath
_SAME: dict[str, Callable[[FitResult], Any]] = {
    "data": lambda fit: f"{fit.inputs['store']} (SHA-256 {fit.inputs['store_sha256'][:12]})",
    "bins": lambda fit: fit.inputs["labels"],
    "frames": lambda fit: fit.inputs["frames"],
    "excluded chunks": lambda fit: fit.inputs["chunks_left_out"],
    "min_lag": lambda fit: fit.config["min_lag"],
    "numbers of pairs": lambda fit: fit.scaling["ndata"].values.tolist(),
    "independent bins": lambda fit: len(_left_out_chisqr(fit)),
    "precision": lambda fit: fit.config["precision"],
    "contrast_prior": lambda fit: fit.config["contrast_prior"],
    "offset_prior": lambda fit: fit.config["offset_prior"],
}
"""What fits that are compared have in common, by its name."""


def compare(results: Sequence[Fit] | Mapping[str, Fit]) -> Comparison:
    """Compare finished fits of several models to the same data, by angles left out; no data are read.

    results: two or more, each a FitResult, or the folder of one or its URL. A mapping gives them names;
        else they have those of their models, or, where models are equal, of their folders.

    The score of a fit is what it predicts of independent bins that were left out (see `Comparison`).
    Raises OptionError for fits to other data or of other weights, that treat contrast and offset in other
    ways, that did not converge, have a robust loss, or were written by an earlier version; SelectionError
    with fewer than 3 independent bins; SourceError for a folder without a result.

    >>> fits = [hd.fit("A0123_c2.zarr", name) for name in ("brownian", "power_law")]
    >>> hd.compare(fits).chosen
    'power_law'
    """
    fits = _named(results)
    for name, fit in fits.items():
        _check_score(name, fit)
    first, *others = fits
    for name in others:
        _check_same(first, fits[first], name, fits[name])
    bins = len(_left_out_chisqr(fits[first]))
    require_independent_bins(bins)
    names = sorted(fits, key=lambda name: (sum(_size(fits[name])), _total(fits[name]), name))
    order = ranked([fits[name] for name in names])
    if order is None:
        raise OptionError(
            f"{', '.join(names)}: each has parameters that one angle alone determines, and no score of "
            f"angles left out: fix such parameters, or fit models without them"
        )
    noise = min(fit.redchi for fit in fits.values()) or 1.0  # 0 where a model interpolates the data
    told = _told(order, np.array([sum(_size(fits[name])) for name in names]))
    rows = [_row(name, fits[name], order, n, noise, bool(told[n])) for n, name in enumerate(names)]
    rows.sort(key=lambda row: (not row.best, -row.score if np.isfinite(row.score) else np.inf))
    return Comparison(tuple(rows), fits[first].inputs["store"], bins, noise)


def _told(order: Ranking, size: np.ndarray) -> np.ndarray:
    """Return which fits the data tell from the best.

    One standard error is enough against one with fewer parameters: where that is the truth, and the other
    holds it as a special case, this happens in 1 to 7 of 100 cases. Two are asked for against others.
    """
    errors = np.where(size < size[order.lowest], 1.0, 2.0)
    return order.above > errors * order.stderr


def _row(
    name: str, fit: FitResult, order: Ranking, n: int, noise: float, told: bool
) -> ComparedFit:
    (parameters, linear), kept = _size(fit), fit.left_out
    assert kept is not None
    penalty = float(kept["penalty"]) / noise
    of_data = float(kept["chisqr"].sum()) / noise  # a prior of a parameter is no datum of all fits
    return ComparedFit(
        name=name,
        model=fit.config["model"],
        parameters=parameters,
        linear=linear,
        chisqr=fit.chisqr,
        redchi=fit.redchi,
        misfit=fit.misfit,
        score=float(-0.5 * order.totals[n] / noise),
        worse_by=float(0.5 * order.above[n] / noise),
        stderr=float(0.5 * order.stderr[n] / noise),
        penalty=penalty,
        clic=of_data + 2 * penalty,
        aic_naive=of_data + 2 * (parameters + linear),
        told=told,
        best=n == order.lowest,
        chosen=n == order.chosen,
    )


def _size(fit: FitResult) -> tuple[int, int]:
    """Return the numbers of parameters of f and of linear ones that were fitted."""
    assert fit.left_out is not None
    return int((~fit.parameters["fixed"].values).sum()), int(fit.left_out["linear"])


def _left_out_chisqr(fit: FitResult) -> np.ndarray:
    assert fit.left_out is not None
    return fit.left_out["left_out_chisqr"].values


def _total(fit: FitResult) -> float:
    """Return χ² of all bins left out, infinite where it is not known."""
    return float(np.nan_to_num(_left_out_chisqr(fit).sum(), nan=np.inf))


def _named(results: Any) -> dict[str, FitResult]:
    """Return the fits by name."""
    form = "a list of results of hd.fit or of their folders, or a mapping of names to them"
    require_type("results", results, list | tuple | Mapping, form)
    given = list(results.values() if isinstance(results, Mapping) else results)
    for one in given:
        require_type("results", one, Fit, "results of hd.fit, or their folders")
    if len(given) < 2:
        raise OptionError(f"a comparison is of two fits or more, and results has {len(given)}")
    fits = [one if isinstance(one, FitResult) else load_result(one) for one in given]
    if isinstance(results, Mapping):
        return {str(name): fit for name, fit in zip(results, fits, strict=True)}
    models = [fit.config["model"] for fit in fits]
    for names in (models, [str(one) for one in given if not isinstance(one, FitResult)]):
        if len(set(names)) == len(fits):
            return dict(zip(names, fits, strict=True))
    raise OptionError(
        f"several of the fits are of the model {max(models, key=models.count)}: give a mapping of names to "
        f"them, as {{'one': ..., 'two': ...}}, or the folder of each once"
    )


def _check_score(name: str, fit: FitResult) -> None:
    """Raise OptionError for a fit that has no scores of bins left out."""
    if (loss := fit.config.get("loss", "linear")) != "linear":
        raise OptionError(
            f"{name} was fitted with the loss {loss}, which has weights of its own: models are compared by "
            f"least squares; fit again with the loss linear"
        )
    if not fit.converged:
        raise OptionError(
            f"{name} is not at an optimum ({fit.outcome.value}): leave it out, or fit it again"
        )
    if fit.left_out is None and (fit.parameters["fixed"] | fit.parameters["at_bound"]).values.all():
        raise OptionError(
            f"{name} has no parameter that was fitted inside its bounds, and predicts no angles left out: "
            f"leave it out, or widen the bounds"
        )
    if fit.left_out is None:
        raise OptionError(
            f"{name} was fitted by homodyne-dask {fit.version}, and its result does not say what angles left "
            f"out do: fit again"
        )


def _check_same(first: str, one: FitResult, second: str, two: FitResult) -> None:
    """Raise OptionError for fits whose χ² are of other data, weights or parts of a measurement."""
    for what, of in _SAME.items():
        values = of(one), of(two)
        if values[0] != values[1]:
            raise OptionError(
                f"{first} and {second} were fitted with different {what}, {shown(values[0])} and "
                f"{shown(values[1])}: fit both alike"
            )
    modes = one.config["scaling"], two.config["scaling"]
    if (modes[0] == "individual") != (modes[1] == "individual"):
        raise OptionError(
            f"{first} and {second} have the scalings {modes[0]} and {modes[1]}: contrast and offset of an "
            f"angle left out are fitted to it in the one, and predicted in the other; fit both alike"
        )
