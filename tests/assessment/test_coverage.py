"""Error bars and the convention against counted photons of known motion."""

import numpy as np
import pytest
import scipy.stats

from homodyne_dask.models import LAMINAR_FLOW, STATIC
from homodyne_dask.models.parameters import search
from homodyne_dask.solver.covariance import uncertainty
from homodyne_dask.store.rings_and_clusters import friedel_clusters
from tests.photons import FLOW, OFFSETS, STILL, photographed
from tests.solver.dense_problem import scaling_at
from tests.synthetic import angles, evaluator, solve

FRAMES = 48
AROUND = np.arange(16) * 22.5 - 180


class Repeats:
    def __init__(self, theta, phi, number, *, friedel=False, mode="individual", **fixed):
        model = LAMINAR_FLOW if len(theta) == 7 else STATIC
        held = {name: v for name, v in (OFFSETS | fixed).items() if name in model.names}
        chosen = search(model.parameters, fixed=held)
        clusters = friedel_clusters(np.full(len(phi), 0.005), phi)
        found, errors, dof = [], [], []
        for seed in range(number):
            scans = photographed(theta, FRAMES, phi, seed, pixels=400, friedel=friedel)
            last = solve(evaluator(scans), chosen, theta, scaling_at(phi, mode))[-1]
            known = uncertainty(model.names, last.reduced, chosen.free, clusters)
            found.append(last.theta)
            errors.append(np.sqrt(np.diag(known.robust)))
            dof.append(known.dof)
        free = chosen.free
        self.names = np.array(model.names)[free]
        self.found = np.array(found)[:, free]
        self.truth = np.asarray(theta)[free]
        self.errors, self.dof = np.array(errors)[:, free], np.array(dof)[:, free]

    def covered(self, share):
        wide = scipy.stats.t.ppf(0.5 + share / 2, self.dof)
        pulls = (self.found - self.truth) / self.errors
        return 100 * (np.abs(pulls) < wide).mean(axis=0)


def within(values, low, high, names):
    inside = (values >= low) & (values <= high)
    assert inside.all(), dict(zip(names, np.round(values, 2), strict=True))


CASES = [
    ("no flow, 9 angles", STILL, angles(9), {}),
    ("flow, 10 angles", FLOW, angles(10), {}),
    ("flow, 14 angles that share contrast and offset", FLOW, angles(14), {"mode": "shared"}),
    ("flow, 10 angles that share contrast and offset", FLOW, angles(10), {"mode": "shared"}),
    ("flow, 8 pairs of angles that see one speckle", FLOW, AROUND, {"friedel": True}),
]
REPEATS = 250
HELD = {0.6827: (62.0, 76.0), 0.95: (92.0, 99.0)}
"""Per cent of repeats in which intervals may hold the truth: two binomial standard errors, of 2.9 and 1.4 %,
below the share and above the mean of 32 parameters in 7 cases, 70 and 96 %."""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("word", "theta", "phi", "more"), CASES, ids=[w for w, *_ in CASES])
def test_intervals_hold_the_truth_as_often_as_they_say(word, theta, phi, more):
    repeats = Repeats(theta, phi, REPEATS, **more)
    for share, (low, high) in HELD.items():
        within(repeats.covered(share), low, high, repeats.names)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_shear_rate_is_that_of_the_motion_to_two_percent():
    repeats = Repeats(FLOW, angles(10), 200, alpha=-0.3, beta=0.2)
    ratio = (repeats.found.mean(axis=0) / repeats.truth)[:2]
    within(ratio, 0.98, 1.02, repeats.names[:2])
