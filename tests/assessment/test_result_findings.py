"""What a fit says of itself: which findings take the place of others."""

from homodyne_dask.assessment.result_findings import findings_of_doubts
from homodyne_dask.results.data.findings import finding
from homodyne_dask.solver.identifiability import Doubt


def test_a_combination_that_is_not_determined_is_said_once():
    doubts = (Doubt("strongly-correlated", ("D0", "alpha"), {"correlation": -0.999}),)
    assert not [*findings_of_doubts(doubts, [finding("undetermined", ("D0", "alpha"))])]
    assert [one.code for one in findings_of_doubts(doubts)] == ["strongly-correlated"]
