"""Random truths whose decay and shear the data resolve, and whether a fit finds them unaided."""

from typing import NamedTuple

import numpy as np

from homodyne_dask.fitting.start.transport_search import (
    Grid,
    mirrored_shear,
    transport_minima,
    undecided_minima,
)
from homodyne_dask.models import MODELS
from homodyne_dask.solver.reduce import reduce
from tests import synthetic
from tests.synthetic import Q, Scans

FRAMES = 120
ANGLES = 9
SIGMA = 0.02


class Found(NamedTuple):
    """A fit from the data alone beside the better of two: from the truth, and from the opposite shear."""

    truth: np.ndarray
    outcome: str
    excess: float
    """χ² above that of the best of the others; below zero: a better optimum."""
    theta: np.ndarray
    best: np.ndarray

    @property
    def succeeded(self) -> bool:
        """Whether it is the optimum, to within one standard error.

        Less would ask how long a flat valley was walked along: a fit rests where the data say no more.
        """
        return self.excess < 1


def drawn(model: str, seed: int, convention: str = "physical") -> Scans:
    """A scan of a random truth: three decades of D0 and of the shear rate, drawn until resolved."""
    rng = np.random.default_rng([seed, len(model)])
    while True:
        dt = 10 ** rng.uniform(-2, 0)
        span, middle = FRAMES * dt, FRAMES * dt / 2
        alpha, beta = rng.uniform(-1.2, 0.6), rng.uniform(-0.8, 0.8)
        D0 = 10 ** rng.uniform(2.5, 5.5)
        rate = D0 * middle**alpha
        theta = [D0, alpha, rng.uniform(0, 0.5) * rate]
        if model == "laminar_flow":
            gamma = 10 ** rng.uniform(-4.5, -1.5)
            strain = gamma * middle**beta
            theta += [gamma, beta, rng.uniform(-0.3, 0.3) * strain, rng.uniform(-90, 90)]
        theta = np.array(theta)
        bounds = np.array([p.bounds for p in MODELS[model].parameters])
        if (theta <= bounds[:, 0]).any() or (theta >= bounds[:, 1]).any():
            continue
        phi = synthetic.angles(ANGLES) if model == "laminar_flow" else np.zeros(4)
        if not 0.5 / span < Q**2 * rate < 0.7 / dt:
            continue
        scans = synthetic.measured(
            theta, FRAMES, phi, dt=dt, contrast=0.2 + 0.03 * np.cos(np.deg2rad(2 * phi)),
            sigma=SIGMA, convention=convention, seed=seed,
        )  # fmt: skip
        if resolved(scans):
            return scans


def resolved(scans: Scans) -> bool:
    """Whether the data determine the rates at the middle of the record to 20 %, phi0 to 5°."""
    reduced = reduce(synthetic.evaluator(scans, side=128)(scans.theta), "individual")
    size = np.sqrt(np.diag(reduced.hessian))
    if not (size > 0).all():
        return False
    middle = float(np.median(scans.time[scans.time > 0]))
    values, vectors = np.linalg.eigh(reduced.hessian / np.outer(size, size))
    if values[0] < 1e-10:
        return False
    covariance = vectors / values @ vectors.T / np.outer(size, size)

    def relative(first: int) -> float:
        a, b, c = scans.theta[first : first + 3]
        power = middle**b
        slope = np.array([power, a * power * np.log(middle), 1.0])
        part = covariance[first : first + 3, first : first + 3]
        return float(np.sqrt(slope @ part @ slope) / abs(a * power + c))

    if len(scans.theta) == 3:
        return relative(0) < 0.2
    return relative(0) < 0.2 and relative(3) < 0.2 and covariance[6, 6] ** 0.5 < 5


def attempt(scans: Scans) -> Found:
    chosen, averages = synthetic.asked(scans), synthetic.summary(scans)
    evaluate = synthetic.evaluator(scans, side=128)
    minima = transport_minima(averages, chosen, "individual")
    here = synthetic.lowest_fit(evaluate, chosen, undecided_minima(minima))[-1]
    truth = chosen.inside(scans.theta)
    mirrored = mirrored_shear(Grid(averages, chosen), truth) if scans.model.shear else []
    there = synthetic.lowest_fit(evaluate, chosen, [truth, *mirrored])[-1]
    excess = here.reduced.chisqr - there.reduced.chisqr
    return Found(scans.theta, here.outcome.name, excess, here.theta, there.theta)
