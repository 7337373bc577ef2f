"""The model that the data ask for, by bins left out."""

import json

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.cli import main
from homodyne_dask.errors import OptionError, SelectionError
from homodyne_dask.models import STATIC
from homodyne_dask.models.parameters import search
from homodyne_dask.solver.influence import left_out_chisqr
from homodyne_dask.solver.variable_projection import reduce
from tests.solver.test_variable_projection import scaling_at
from tests.synthetic import FLOW, angles, evaluator, measured, solve, store

STATIC_THETA = [20000.0, -0.4, 1000.0]


def without(scans, bins):
    """The scan without some bins."""
    keep = np.setdiff1d(np.arange(len(scans.phi)), bins)
    names = ("q", "phi", "contrast", "offset", "sigma_row", "c2")
    return type(scans)(**(vars(scans) | {name: getattr(scans, name)[keep] for name in names}))


@pytest.mark.parametrize("clusters", [[0, 1, 2, 3, 4], [0, 1, 2, 2, 4]], ids=["bins", "a pair"])
@pytest.mark.parametrize("mode", ["individual", "shared"])
def test_the_score_of_a_bin_is_its_chisqr_at_the_optimum_of_the_others(mode, clusters):
    phi, clusters = angles(5), np.array(clusters)
    scans = measured(STATIC_THETA, 40, phi, sigma=0.01, seed=3)
    chosen, evaluate = search(STATIC.parameters), evaluator(scans)
    state = solve(evaluate, chosen, scans.theta, scaling_at(phi, mode))[-1]
    found = left_out_chisqr(state.reduced, np.ones(3, bool), clusters)
    for one in np.unique(clusters):
        left = clusters == one
        rest = without(scans, np.flatnonzero(left))
        there = solve(evaluator(rest), chosen, state.theta, scaling_at(rest.phi, mode))[-1]
        moments = evaluate(there.theta).moments[left]
        if mode == "individual":
            expected = reduce(evaluate(there.theta), "individual").chisqr_per_bin[left]
        else:
            offset, contrast = there.reduced.linear_params[0]
            x = np.array([-offset, 1.0, -contrast])
            expected = np.einsum("i,bij,j->b", x, moments[:, :3, :3], x)
        rise = expected - state.reduced.chisqr_per_bin[left]
        np.testing.assert_allclose(
            found[left] - state.reduced.chisqr_per_bin[left],
            rise,
            atol=0.03 + 0.02 * abs(rise).max(),
        )


@pytest.mark.parametrize(
    ("theta", "chosen"),
    [
        ([20000.0, 0.0, 0.0], "brownian"),
        ([20000.0, -0.6, 0.0], "power_law"),
        (FLOW * [1, 1, 1, 3, 1, 1, 1], "laminar_flow"),
    ],
)
def test_the_simplest_model_that_predicts_the_angles_left_out_is_chosen(tmp_path, theta, chosen):
    scan = store(measured(theta, 60, angles(9), sigma=0.02, seed=5), tmp_path)
    options = {"gap": "200 um"} if len(theta) == 7 else {}
    found = hd.compare_models(scan, **options)
    assert found.chosen == chosen
    assert found.result.converged
    by_name = {row.model: row for row in found.table}
    assert list(by_name) == ["brownian", "power_law", "static", "laminar_flow"][: len(by_name)]
    assert by_name[chosen].above_lowest <= by_name[chosen].stderr
    assert f"the data ask for {chosen}" in str(found)


def test_a_model_that_sees_no_decay_is_not_chosen(tmp_path):
    """Where shear is over before diffusion begins, only the model with shear sees the decay."""
    scan = store(
        measured(FLOW * [1, 1, 1, 5, 1, 1, 1], 60, angles(9), sigma=0.02, seed=5), tmp_path
    )
    found = hd.compare_models(scan, [hd.STATIC, hd.LAMINAR_FLOW], gap="200 um")
    first, second = found.table
    assert (first.outcome, second.outcome) == ("NO_DECAY", "CONVERGED")
    assert np.isnan(first.score)
    assert second.chosen
    with pytest.raises(OptionError, match="none of the models compared converged"):
        hd.compare_models(scan, [hd.STATIC])


def test_too_few_bins_and_losses_are_refused(tmp_path):
    scan = store(measured([20000.0, 0.0, 0.0], 20, angles(2), sigma=0.02), tmp_path)
    with pytest.raises(SelectionError, match="takes 3 independent ones, and the selection has 2"):
        hd.compare_models(scan)
    with pytest.raises(OptionError, match="compared by least squares"):
        hd.compare_models(scan, loss="huber")


def test_the_command_line_fits_the_model_that_it_chose(tmp_path, capsys):
    scan = store(measured([20000.0, 0.0, 0.0], 60, angles(5), sigma=0.02, seed=5), tmp_path)
    folder = tmp_path / "fit"
    with pytest.raises(SystemExit) as end:
        main(["fit", str(scan.path), "--model", "auto", "-o", str(folder)])
    assert end.value.code == 0
    printed = capsys.readouterr().out
    assert "the data ask for brownian" in printed
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["model"] == "brownian"
    assert [row["model"] for row in summary["comparison"]] == ["brownian", "power_law", "static"]
    assert "brownian was chosen by χ² of bins left out" in (folder / "report.txt").read_text()
    assert "was chosen by" in str(hd.load_result(folder))


def test_the_model_auto_is_for_one_new_fit(tmp_path, capsys):
    scan = store(measured([20000.0, 0.0, 0.0], 20, angles(5), sigma=0.02), tmp_path)
    for more in (["--resume"], ["--over", "age", "--windows", "2"], [str(scan.path)]):
        with pytest.raises(SystemExit) as end:
            main(["fit", str(scan.path), "--model", "auto", *more])
        assert end.value.code == 2
        assert "the model auto is for one new fit" in capsys.readouterr().err
