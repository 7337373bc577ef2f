"""What a fit says of itself: which findings take the place of others."""

from types import SimpleNamespace

from homodyne_dask.assessment import result_findings
from homodyne_dask.results.data.findings import finding
from homodyne_dask.solver.identifiability import Doubt


def codes_of_undetermined(monkeypatch, combinations, wide):
    """Codes, where alpha and D0 are strongly correlated, too."""
    monkeypatch.setattr(result_findings, "_directions", lambda _: combinations)
    monkeypatch.setattr(result_findings, "_larger_errors", lambda _: wide)
    doubts = (Doubt("strongly-correlated", ("D0", "alpha"), {"correlation": -0.999}),)
    known = SimpleNamespace(signal=None, errors=SimpleNamespace(doubts=doubts))
    end = SimpleNamespace(known=known)
    return [one.code for one in result_findings._undetermined(end)]


def test_parameters_with_large_errors_of_their_own_are_correlated_all_the_same(monkeypatch):
    wide = [finding("larger-error", ("D0", "alpha", "D_offset"))]
    expected = ["larger-error", "strongly-correlated"]
    assert codes_of_undetermined(monkeypatch, [], wide) == expected


def test_a_combination_that_is_not_determined_is_said_once(monkeypatch):
    combination = [finding("undetermined", ("D0", "alpha"))]
    assert codes_of_undetermined(monkeypatch, combination, []) == ["undetermined"]
