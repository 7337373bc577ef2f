"""Wide passes and posteriors on one worker, on two, and with one killed in the middle: the same bits."""

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.fitting.fit import plan_for
from homodyne_dask.fitting.posterior.sample_posterior import posterior_draws
from homodyne_dask.fitting.request import prepare
from homodyne_dask.sweep.sweep import sweep_of
from homodyne_dask.sweep.tasks import WIDE_GRAM, ManyThetas
from tests.faults.local_workers import workers
from tests.synthetic import angles, measured, store

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(400)]
TRUTH = np.array([20000.0, -0.4, 500.0])
OPTIONS = {"fixed": {"D_offset": 500.0}}


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    """9 angles of 1100 frames: 6 blocks of 512 x 512, 5 million pairs."""
    scans = measured(TRUTH, 1100, angles(9), dt=0.02, sigma=0.1)
    return store(scans, tmp_path_factory.mktemp("killed"))


AS = [(1, ""), (2, ""), (2, "wide_gram-")]


def test_a_wide_gram_has_the_same_bits(scan):
    request = prepare(scan, "static", **OPTIONS)
    thetas = TRUTH * (1 + 0.1 * np.random.default_rng(1).standard_normal((25, 3)))

    def wide(client):
        plan = plan_for(request, client)
        sweep = sweep_of(plan, scan.selection, request.problem, client)
        return sweep.over(WIDE_GRAM, ManyThetas(thetas))

    with workers(1) as client:
        first = wide(client)
    for processes, doomed in AS[1:]:
        with workers(processes, doomed) as client:
            again = wide(client)
        assert again.moments.tobytes() == first.moments.tobytes()
        assert again.pairs.tobytes() == first.pairs.tobytes()


def test_a_posterior_has_the_same_bits(scan):
    with workers(2) as client:
        result = hd.fit(scan, "static", client=client, **OPTIONS)
    found = []
    for processes, doomed in AS:
        with workers(processes, doomed) as client:
            found.append(posterior_draws(result, scan, draws=200, seed=5, client=client))
    for other in found[1:]:
        assert other.theta.tobytes() == found[0].theta.tobytes()
        assert other.linear_params.tobytes() == found[0].linear_params.tobytes()
        assert other.log_likelihood.tobytes() == found[0].log_likelihood.tobytes()
        assert other.largest_error == found[0].largest_error
