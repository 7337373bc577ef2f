"""A saved state of the solver is what it was: with its decrement, and ended if it had ended."""

from dataclasses import replace

import numpy as np
import pytest

from homodyne_dask.models import LAMINAR_FLOW
from homodyne_dask.models.parameters import search
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.convergence import with_outcome
from homodyne_dask.solver.reduce import reduce
from homodyne_dask.solver.state import Outcome
from tests.synthetic import FLOW, angles, evaluator, measured

ANYWHERE = search(LAMINAR_FLOW.parameters)


@pytest.mark.parametrize("trust_region", [False, True])
def test_a_fit_that_stalled_is_not_begun_again_when_it_is_resumed(trust_region):
    evaluate, options = (
        evaluator(measured(FLOW, 30, angles(3))),
        lm.Options(trust_region=trust_region),
    )

    def lying(trial):
        reduced = reduce(evaluate(trial.theta), "individual")
        return replace(reduced, gradient=-reduced.gradient)

    last = list(lm.iterate(ANYWHERE, lying, lm.Trial(FLOW * 1.05), options))[-1]
    assert last.outcome is Outcome.STALLED
    saved = replace(last, outcome=Outcome.RUNNING, decrement=np.inf)
    restored = with_outcome(ANYWHERE, saved, options)
    assert restored.outcome is Outcome.STALLED
    assert restored.decrement == last.decrement
