"""Pictures: each is drawn for every kind of fit, and what is drawn are the numbers of slow NumPy."""

from dataclasses import replace

import matplotlib.image
import numpy as np
import pytest
import zarr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from homodyne_dask.errors import OptionError, SelectionError
from homodyne_dask.lm import Outcome
from homodyne_dask.models import LAMINAR_FLOW, STATIC
from homodyne_dask.prediction import predict
from homodyne_dask.rates import rate
from homodyne_dask.report import plots
from homodyne_dask.report.captions import TITLES, alternative
from homodyne_dask.report.pictures_angles import at_one_lag
from homodyne_dask.report.pictures_blocks import (
    SIDE,
    Grid,
    block_means,
    grid_of,
    model_means,
    representative,
    view_of,
)
from homodyne_dask.report.pictures_cuts import ages, cut_of
from homodyne_dask.report.pictures_model import (
    around,
    curves,
    decay_times,
    fitted,
    true_model,
)
from homodyne_dask.report.pictures_style import log_tick
from homodyne_dask.result import FitResult, covariance_table, parameter_table, scaling_table
from homodyne_dask.tables import influence_table
from tests import synthetic

DIFFUSION = np.array([20000.0, -0.4, 1000.0])
FLOW = np.array([20000.0, -0.4, 1000.0, 9e-4, -0.2, 1e-5, 3.0])
NOTHING = {"compilations": {}, "timings": {}, "undetermined": (), "warnings": (), "inputs": {}}


def result_for(scan, theta, covariance=None, naive=None, convention="physical", **changes):
    """The result of a fit that found the truth `measured` scans are made from."""
    model = LAMINAR_FLOW if len(theta) == 7 else STATIC
    names, p, k = list(model.names), len(theta), len(scan.bins)
    missing = np.full(p, np.nan)
    columns = {"stderr": missing, "stderr_naive": missing, "dof": missing, "value": theta}
    flags = {"at_bound": np.zeros(p), "fixed": np.zeros(p), "unit": [""] * p}
    bins = {"contrast": np.full(k, 0.2), "offset": np.ones(k), "redchi": np.ones(k)}
    bins |= {"ndata": np.full(k, 10), "undetermined": np.zeros(k), "q": scan.q, "phi": scan.phi}
    config = {"model": model.name, "convention": convention, "gap_angstrom": synthetic.GAP}
    passes = [(900.0, 2.0, True), (None, None, False), (120.0, 0.1, False), (100.0, 1e-5, True)]
    history = tuple(
        {"pass": n, "chisqr": c, "decrement": d, "accepted": a}
        for n, (c, d, a) in enumerate(passes, start=1)
    )
    return FitResult(
        outcome=Outcome.CONVERGED,
        parameters=parameter_table(columns | flags | {"param": names}),
        covariance=covariance_table(covariance, names),
        covariance_naive=covariance_table(naive, names),
        scaling=scaling_table(bins | {"label": scan.label}),
        chisqr=100.0,
        redchi=1.0,
        ndata=10 * k,
        nbins=k,
        passes=len(passes),
        config=config | {"min_lag": 1},
        **(NOTHING | {"history": history, "influence": moves(scan, names)} | changes),
    )


def moves(scan, names):
    """By how many standard errors each parameter moves without each bin; the last is fixed."""
    change = np.outer(np.sin(1.0 + np.arange(len(scan.q))), 0.5 * np.arange(1.0, len(names) + 1))
    change[:, -1] = np.nan
    return influence_table(change, names, scan.label)


def scan_of(folder, theta, n=60, phi=(0.0, 45.0, 90.0), dt=0.1, dead=(), q=None, **given):
    """A store of a scan; frames in `dead` have no counts."""
    scans = synthetic.measured(theta, n, phi, dt=dt, **given)
    c2 = scans.c2.copy()
    c2[:, list(dead)] = c2[:, :, list(dead)] = np.nan
    changes = {} if q is None else {"q": np.full(len(scans.q), q)}
    return synthetic.store(replace(scans, c2=c2), folder, **changes)


@pytest.fixture(scope="module")
def flowing(tmp_path_factory):
    """A scan of laminar flow."""
    return scan_of(tmp_path_factory.mktemp("flow"), FLOW)


@pytest.fixture(scope="module")
def diffusing(tmp_path_factory):
    """A scan of diffusion."""
    return scan_of(tmp_path_factory.mktemp("diffusion"), DIFFUSION)


def truth_of(theta, names):
    parameters = dict(zip(names, theta * 1.1, strict=True))
    return {"model": "laminar_flow", "convention": "physical", "parameters": parameters,
            "gap_angstrom": synthetic.GAP}  # fmt: skip


SMALL = np.diag((0.02 * FLOW) ** 2)
CASES = {
    "laminar flow with truth and robust errors": (
        {"theta": FLOW},
        {"covariance": SMALL, "truth": truth_of(FLOW, LAMINAR_FLOW.names)},
    ),
    "diffusion without covariance, one bin, frames masked": (
        {"theta": DIFFUSION, "phi": [0.0], "dead": [20, 21, 22, 40]},
        {},
    ),
    "q unknown, naive errors only": (
        {"theta": DIFFUSION * [synthetic.Q**2, 1, synthetic.Q**2], "q": np.nan, "phi": [30.0]},
        {"naive": np.diag([0.01, 0.01, 0.01])},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_every_picture_is_written_and_shows_something(case, tmp_path):
    given, found = CASES[case]
    made = {**given, "theta": DIFFUSION} if "q" in given else given
    scan = scan_of(tmp_path, **made)
    paths = plots.save_all(result_for(scan, given["theta"], **found), scan, tmp_path / "fit")
    assert [path.stem for path in paths] == list(plots.PICTURES)
    for path in paths:
        pixels = matplotlib.image.imread(path)
        assert min(pixels.shape[:2]) > 400
        assert (pixels.std(axis=(0, 1))[:3] > 0.05).all(), path.stem


def texts_of(picture):
    """Every text that is drawn in a picture, with the box it takes."""
    canvas = FigureCanvasAgg(picture)
    canvas.draw()  # lays it out
    renderer, drawn = canvas.get_renderer(), []
    renderer.draw_text = lambda *_, mtext=None, **options: drawn.append(mtext)
    picture.draw(renderer)
    several_lines = [text for text in picture.findobj(Text) if "\n" in text.get_text()]
    texts = dict.fromkeys([text for text in drawn if text is not None] + several_lines)
    return [(text.get_text(), text.get_window_extent(renderer)) for text in texts]


RINGS = (
    {"theta": FLOW, "q": [0.004, 0.004, 0.006, 0.006], "phi": [-90.0, 0.0, 0.0, 90.0]},
    {"naive": np.diag((0.5 * FLOW) ** 2)},
)


@pytest.mark.parametrize("case", [*CASES, "two rings, wide bands, coarse passes"])
@pytest.mark.parametrize("name", plots.PICTURES)
def test_no_text_of_a_picture_is_cut_off_or_lies_on_another(name, case, tmp_path):
    given, found = CASES.get(case, RINGS)
    made = {**given, "theta": DIFFUSION} if given.get("q") is np.nan else given
    scan = scan_of(tmp_path, **made)
    result = result_for(scan, given["theta"], **found)
    if case not in CASES:
        result = replace(result, history=(*COARSE, *result.history))
    picture = plots.PICTURES[name](result, scan)
    shown, page = texts_of(picture), picture.bbox
    assert len(shown) > 5
    for text, box in shown:
        assert box.x0 > page.x0 - 1, text
        assert box.x1 < page.x1 + 1, text
        assert box.y0 > page.y0 - 1, text
        assert box.y1 < page.y1 + 1, text
    for n, (one, a) in enumerate(shown):
        for other, b in shown[:n]:
            across = min(a.x1, b.x1) - max(a.x0, b.x0)
            upright = min(a.y1, b.y1) - max(a.y0, b.y0)
            assert across < 2 or upright < 2, (one, other)


COARSE = (
    {"level": 16, "passes": 7, "candidates": 6, "seconds": 0.35},
    {"level": 4, "passes": 3, "candidates": 0, "seconds": 0.6},
)


def test_coarse_passes_stand_left_of_those_over_all_data_at_the_time_of_one(flowing):
    full = [{"pass": n, "chisqr": 10.0 - n, "decrement": 1.0, "accepted": True, "seconds": 2.0 * n}
            for n in (1, 2)]  # fmt: skip
    result = result_for(flowing, FLOW, history=(*COARSE, *full))
    axis = plots.passes(result, flowing).axes[2]
    drawn = {line.get_label(): line.get_xydata() for line in axis.get_lines()}
    np.testing.assert_allclose(drawn["16×16 means"], [[x, 0.05] for x in range(-9, -2)])
    np.testing.assert_allclose(drawn["4×4 means"], [[x, 0.2] for x in (-2, -1, 0)])
    (all_data,) = (xy for name, xy in drawn.items() if len(xy) == 2 and "means" not in name
                   and xy[0, 0] == 1)  # fmt: skip
    np.testing.assert_allclose(all_data, [[1, 2.0], [2, 4.0]])


def test_the_decay_at_one_lag_is_the_mean_of_the_same_pairs_in_data_and_model(tmp_path):
    scan = scan_of(tmp_path, FLOW, n=128, phi=np.arange(-90.0, 90.0, 12.0), sigma=1e-7)
    result = result_for(scan, FLOW)
    found = at_one_lag(result, scan, fitted(result, scan))
    assert np.ptp(found.f) > 0.2
    np.testing.assert_allclose(found.f, found.model, atol=2e-3)
    noisy = scan_of(tmp_path, FLOW, n=128, phi=np.arange(-90.0, 90.0, 12.0), dt=0.2)
    again = at_one_lag(result_for(noisy, FLOW), noisy, fitted(result_for(noisy, FLOW), noisy))
    assert 0.3 < ((again.f - again.model) / again.stderr).std() < 2


def test_the_model_around_the_circle_passes_through_every_bin(flowing):
    result = result_for(flowing, FLOW)
    t1, t2 = np.array([1.0]), np.array([2.0])
    bins = fitted(result, flowing).shape(np.arange(3), t1, t2)
    circle = around(result, flowing, flowing.q[0], np.array([0.0, 45.0, 90.0, -180.0]))
    f = circle.shape(np.arange(4), t1, t2)
    np.testing.assert_allclose(f[:3], bins, rtol=1e-12)
    np.testing.assert_allclose(f[3], f[0], rtol=1e-9)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", plots.PICTURES)
def test_every_picture_has_its_numbers_in_words(name, case, tmp_path):
    given, found = CASES[case]
    made = {**given, "theta": DIFFUSION} if "q" in given else given
    scan = scan_of(tmp_path, **made)
    words = alternative(name, result_for(scan, given["theta"], **found), scan)
    assert words.endswith(".")
    assert "nan" not in words
    assert any(letter.isdigit() for letter in words)
    assert TITLES[name]


def test_a_result_without_influence_has_no_picture_of_it(diffusing, tmp_path):
    result = result_for(diffusing, DIFFUSION, influence=None)
    names = [path.stem for path in plots.save_all(result, diffusing, tmp_path)]
    assert names == [name for name in plots.PICTURES if name != "influence"]
    with pytest.raises(OptionError, match="holds no influence"):
        plots.influence(result, diffusing)


def test_influence_shows_each_parameter_that_moved_against_the_angle(flowing):
    result = result_for(flowing, FLOW)
    axes = [axis for axis in plots.influence(result, flowing).axes if axis.get_visible()]
    assert [axis.get_title() for axis in axes] == list(LAMINAR_FLOW.names[:-1])
    drawn = np.vstack(
        [line.get_xydata() for line in axes[2].get_lines() if line.get_marker() == "o"]
    )
    expected = result.influence["change"].values[:, 2]
    np.testing.assert_allclose(drawn, np.transpose([flowing.phi, expected]))


@pytest.mark.parametrize("name", plots.PICTURES)
def test_a_result_draws_each_picture_of_the_scan_that_was_fitted(name, flowing):
    result = result_for(flowing, FLOW)
    draw = getattr(result.plot, name)
    drawn, expected = draw(flowing), plots.PICTURES[name](result, flowing)
    assert [a.get_title() for a in drawn.axes] == [a.get_title() for a in expected.axes]
    with pytest.raises(SelectionError, match="give the selection that was fitted"):
        draw(flowing.select(label=2))


def test_a_scan_that_was_not_fitted_is_refused(diffusing, tmp_path):
    result = result_for(diffusing, DIFFUSION)
    with pytest.raises(SelectionError, match=r"of 3 bins.*the scan has 1"):
        plots.save_all(result, diffusing.select(label=2), tmp_path)


def test_bins_without_decay_or_pairs_and_values_that_are_not_numbers_leave_gaps(flowing):
    result = result_for(flowing, np.full(7, np.nan), history=())
    for name, values in (("undetermined", [1, 0, 0]), ("ndata", [10, 0, 0])):
        result.scaling[name].values[:] = values
    for name in ("contrast", "offset", "redchi"):
        result.scaling[name].values[1:] = np.nan
    for draw in plots.PICTURES.values():
        draw(result, flowing)


def test_units_follow_what_is_known(tmp_path):
    scan = scan_of(tmp_path, DIFFUSION, q=np.nan)
    labels = [axis.get_ylabel() for axis in plots.rates(result_for(scan, DIFFUSION), scan).axes]
    assert labels == ["q²J [1/s]"]
    assert "q unknown" in plots.cuts(result_for(scan, DIFFUSION), scan).axes[0].get_title()


GRIDS = {
    "one frame a block": (1, 0, 60),
    "blocks of three, a rest left out": (3, 0, 20),
    "blocks that begin inside a tile": (4, 37, 40),
    "blocks across tiles": (7, 3, 27),
}


@pytest.mark.parametrize("case", GRIDS)
def test_block_means_are_the_means_of_all_known_pairs(case):
    merged, first, blocks = GRIDS[case]
    n = 200
    rng = np.random.default_rng(3)
    c2 = rng.normal(1.0, 0.1, (2, n, n)).astype(np.float32)
    c2[rng.random(c2.shape) < 0.2] = np.nan
    c2[:, np.tril(np.ones((n, n), bool))] = np.nan
    use = rng.random(n) > 0.05
    array = zarr.array(c2, chunks=(1, 64, 64))
    grid = Grid("c2", 1, first, merged, blocks)
    mean, count = block_means(array, 1, grid, use)
    known = np.where(use[:, None] & use, c2[1].astype(float), np.nan)
    for i in range(blocks):
        for j in range(blocks):
            block = known[np.ix_(grid.frames[i], grid.frames[j])]
            there = block[np.isfinite(block)]
            assert count[i, j] == len(there)
            enough = len(there) >= merged**2 / 2
            wanted = there.mean() if enough and len(there) else np.nan
            np.testing.assert_allclose(mean[i, j], wanted, rtol=1e-12)


def test_a_long_scan_is_read_from_block_means_of_the_store(tmp_path):
    n = 2 * SIDE * 4 + 9
    rng = np.random.default_rng(5)
    scan = scan_of(tmp_path, DIFFUSION, n=64)
    time = np.arange(n) * 0.1
    c2 = rng.normal(1.0, 0.1, (1, n, n)).astype(np.float32)
    held = synthetic.Scans(
        DIFFUSION, time, scan.q[:1], scan.phi[:1], *([np.ones(1)] * 2), np.ones((1, n)), np.triu(c2, 1),
        "physical",
    )  # fmt: skip
    held.c2[:, np.tril(np.ones((n, n), bool))] = np.nan
    scan = synthetic.store(held, tmp_path, "long")
    grid = grid_of(scan)
    assert (grid.level, grid.merged, grid.blocks) == (4, 3, 171)
    view = view_of(scan, result_for(scan, DIFFUSION), fitted(result_for(scan, DIFFUSION), scan), 0)
    block = c2[0][np.ix_(grid.frames[5], grid.frames[90])]
    np.testing.assert_allclose(view.data[90, 5], block.mean(), rtol=1e-6)
    model = fitted(result_for(scan, DIFFUSION), scan)
    np.testing.assert_allclose(
        view.residual[5, 90], (block.mean() - 1 - 0.2 * model_means(scan, model, grid, 0)[5, 90])
        / (1 / grid.side), rtol=1e-5,
    )  # fmt: skip


@pytest.mark.parametrize("convention", ["physical", "homodyne"])
def test_the_model_of_a_picture_is_the_mean_of_the_prediction(convention, flowing):
    model = fitted(result_for(flowing, FLOW, convention=convention), flowing)
    full = predict(
        LAMINAR_FLOW, FLOW, flowing.time, q=flowing.q[1], phi=flowing.phi[1], gap=synthetic.GAP,
        convention=convention,
    )[0]  # fmt: skip
    means = model_means(flowing, model, Grid("c2", 1, 4, 5, 11), 1)
    slow = full[4:59, 4:59].reshape(11, 5, 11, 5).mean(axis=(1, 3))
    np.testing.assert_allclose(means, slow, rtol=1e-10, atol=1e-12)


def test_maps_are_symmetric_with_a_blank_diagonal_and_residuals_in_units_of_sigma(tmp_path):
    scan = scan_of(tmp_path, FLOW, dead=[30])
    view = view_of(scan, result_for(scan, FLOW), fitted(result_for(scan, FLOW), scan), 0)
    for part in (view.data, view.model, view.residual):
        np.testing.assert_array_equal(part, part.T)
        assert np.isnan(np.diag(part)).all()
    assert np.isnan(view.data[30]).all()
    _, residual = view.upper
    assert len(residual) == 59 * 58 // 2
    assert residual.std() == pytest.approx(1, abs=0.05)
    np.testing.assert_allclose(view.edges, np.arange(61) * 0.1, rtol=1e-12)


@pytest.mark.parametrize("convention", ["physical", "homodyne"])
def test_bands_are_those_of_random_parameters(convention, flowing):
    rng = np.random.default_rng(7)
    spread = np.diag(0.01 * np.abs(FLOW)) @ rng.normal(size=(7, 7))
    covariance = spread @ spread.T / 7
    result = result_for(flowing, FLOW, naive=covariance, convention=convention)
    found = curves(fitted(result, flowing), result, flowing)
    drawn = [
        curves(fitted(replaced(result, theta), flowing), result, flowing)
        for theta in rng.multivariate_normal(FLOW, covariance, 1000)
    ]
    for name in ("transport", "shear_rate", "strain"):
        curve = getattr(found, name)
        samples = np.array([getattr(one, name).value for one in drawn])[:, 1:]
        np.testing.assert_allclose(curve.stderr[1:], samples.std(axis=0), rtol=0.1)
        inside = np.abs(samples - curve.value[1:]) < curve.quantile * curve.stderr[1:]
        assert inside.mean() == pytest.approx(0.95, abs=0.02)


def replaced(result, theta):
    """The same result with other values."""
    return replace(result, parameters=result.parameters.assign(value=("param", theta)))


def test_robust_bands_widen_with_few_degrees_of_freedom(flowing):
    result = result_for(flowing, FLOW, covariance=SMALL)
    result.parameters["dof"].values[:] = [12.0, 3.0, 20.0, np.nan, np.nan, np.nan, 5.0]
    found = curves(fitted(result, flowing), result, flowing)
    assert found.errors == "robust"
    assert found.transport.quantile == pytest.approx(3.182, abs=1e-3)  # Student, 3
    assert found.shear_rate.quantile == pytest.approx(1.960, abs=1e-3)


def test_the_strain_is_the_trapezoid_sum_of_the_shear_rate(tmp_path):
    scan = scan_of(tmp_path, FLOW).select(frames=(10, 50))
    for convention in ("physical", "homodyne"):
        result = result_for(scan, FLOW, convention=convention)
        found = curves(fitted(result, scan), result, scan)
        t, value = found.shear_rate.time, found.shear_rate.value
        steps = 0.5 * (value[1:] + value[:-1]) * np.diff(t)
        np.testing.assert_allclose(found.strain.value[1:], np.cumsum(steps), rtol=1e-9)
        np.testing.assert_allclose(t, scan.time[10:50])


def test_the_gradient_of_a_rate_is_its_difference_quotient():
    t, theta = np.array([0.05, 1.0, 30.0]), np.array([3.0, -0.7, 0.4])
    _, gradient = rate(t, theta, None)
    for n in range(3):
        step = 1e-6 * np.eye(3)[n]
        slope = (rate(t, theta + step, None)[0] - rate(t, theta - step, None)[0]) / 2e-6
        np.testing.assert_allclose(gradient[n], slope, rtol=1e-7)
    value, gradient = rate(t, np.array([1.0, -1.0, -2.0]), 1e-10)
    assert value[2] == 1e-10
    assert (gradient[:, 2] == 0).all()


def test_the_decay_time_is_where_f_falls_to_one_over_e(tmp_path):
    theta = np.array([20000.0, 0.0, 0.0])
    scan = scan_of(tmp_path, theta, n=100)
    times = decay_times(fitted(result_for(scan, theta), scan), scan)
    np.testing.assert_allclose(times, 1 / (synthetic.Q**2 * 20000), rtol=1e-3)
    slow = decay_times(fitted(result_for(scan, theta * 0.01), scan), scan)
    assert np.isnan(slow).all()


def test_cuts_have_the_error_of_a_mean_of_their_pairs(tmp_path):
    scan = scan_of(tmp_path, DIFFUSION, n=128, phi=[0.0])
    model, read = fitted(result_for(scan, DIFFUSION), scan), scan.cuts()
    shown = ages(read, 0, scan)
    assert 3 <= len(shown) <= 5
    pulls = []
    for age in shown:
        cut = cut_of(scan, read, 0, age)
        assert (np.diff(cut.lag) > 0).all()
        wanted = 1 + 0.2 * model.shape(np.array([0]), cut.t1, cut.t1 + cut.lag)[0]
        pulls.append((cut.c2 - wanted) / cut.stderr)
    assert np.concatenate(pulls).std() == pytest.approx(1, abs=0.3)


def test_bins_shown_lie_along_the_flow_across_it_and_between(tmp_path):
    phi = np.arange(-90.0, 90.0, 10.0)
    scan = scan_of(tmp_path, FLOW, n=8, phi=phi)
    shown = representative(result_for(scan, FLOW), scan)
    assert (scan.phi[shown] - FLOW[6] + 90) % 180 - 90 == pytest.approx([-3, 27, 57, 87])
    static = representative(result_for(scan, DIFFUSION), scan)
    assert scan.phi[static].tolist() == [-90, -30, 20, 80]


def test_truth_is_drawn_only_beside_the_same_model_and_convention(flowing):
    truth = truth_of(FLOW, LAMINAR_FLOW.names)
    assert true_model(result_for(flowing, FLOW, truth=truth), flowing).at.theta[0] == pytest.approx(
        22000
    )
    other = truth | {"convention": "homodyne"}
    for result in (result_for(flowing, FLOW), result_for(flowing, FLOW, truth=other)):
        assert true_model(result, flowing) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.001, "0.001"), (1.0, "1"), (20000.0, "20000"), (1e-5, "10⁻⁵"), (3e7, "3·10⁷")],
)
def test_ticks_of_a_logarithmic_axis_are_plain_text(value, text):
    assert log_tick(value) == text
