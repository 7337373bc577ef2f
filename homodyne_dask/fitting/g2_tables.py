"""What a fit of a table of g2(delay) cannot have: options of frames, speckle noise, and models of age."""

import numpy as np

from homodyne_dask.errors import OptionError
from homodyne_dask.kernels.backend import evaluation_of
from homodyne_dask.kernels.problem import Problem
from homodyne_dask.models.parameters import Search
from homodyne_dask.request.options import PAIRS, FitOptions

SCALES = 10.0 ** np.arange(-7, 5)
"""s: lags at which f is compared at two ages."""
MAX_CHANGE = 1e-7
"""Of f from one age to another, above which it depends on age."""


def check_table(options: FitOptions) -> None:
    """Raise OptionError for options that apply to pairs of frames."""
    refused = {
        "weighting": (options.weighting != PAIRS, "the noise of speckle"),
        "min_lag": (options.min_lag > 1, "frames: remove the first lines of the table instead"),
        "friedel": (options.friedel != "on", "the noise of speckle"),
        "rates": (options.rates is not None, "ages"),
    }
    for name, (given, needs) in refused.items():
        if given:
            raise OptionError(
                f"{name} = {getattr(options, name)} needs two-time data, and a table of g2 has only delays, "
                f"not {needs}; leave out {name}"
            )


def check_age(problem: Problem, search: Search, q: float, phi: float) -> None:
    """Raise OptionError for a model whose f depends on age at some point within its bounds."""
    model, share = problem.model, np.random.default_rng(0).uniform(0.3, 0.7, len(search.names))
    low, high = (
        np.where(np.isfinite(of), of, n) for n, of in ((1, search.lower), (2, search.upper))
    )
    log = search.log & (low > 0)
    low, high = (np.where(log, np.log(np.where(log, of, 1)), of) for of in (low, high))
    theta = low + share * (high - low)
    theta = np.where(log, np.exp(np.where(log, theta, 0)), theta)
    theta = np.where(np.isfinite(search.start), search.start, theta)
    backend, steps, bins = evaluation_of(model), np.arange(1.0, 4), (np.array([q]), np.array([phi]))
    for scale in SCALES:
        time = scale * steps
        at = backend.point(problem, theta, time)
        f = np.asarray(backend.f_at(at, time, *bins, time[:2, None], time[1:, None]))
        if not np.abs(np.ptp(f)) <= MAX_CHANGE:
            raise OptionError(
                f"{model.name} depends on age, and a table of g2 is a mean over all ages: fix its exponents "
                f"at 0, fit a model of the lag alone, such as brownian or stretched, or fit two-time data"
            )
