"""Contrast of speckle against exposure, or against the delay of two pulses. Truth: an integral in NumPy."""

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.cli import main
from homodyne_dask.errors import HomodyneDaskError, OptionError, SourceError
from homodyne_dask.models import model_named

T = np.geomspace(1e-3, 10, 24)
Q = 0.008
D0, BETA, SIGMA = 2e4, 0.3, 5e-4


def in_exposure(f, exposure, points=20_000):
    """The mean of f(|t' - t''|) over all pairs of times in an exposure, as a sum over lags."""
    # finer towards lag 0, where fast decays are
    edges = np.linspace(0, 1, points + 1) ** 3
    lag = 0.5 * (edges[1:] + edges[:-1])
    return float(np.sum(2 * (1 - lag) * f(lag * exposure) * np.diff(edges)))


DECAYS = {
    "brownian": ({"D0": D0}, lambda lag: np.exp(-(Q**2) * D0 * lag)),
    "stretched": ({"rate": 3.0, "stretching": 0.5}, lambda lag: np.exp(-2 * (3 * lag) ** 0.5)),
    "stretched * brownian": (
        {"rate": 3.0, "stretching": 2.0, "D0": D0},
        lambda lag: np.exp(-2 * (3 * lag) ** 2 - Q**2 * D0 * lag),
    ),
    "frozen + brownian": (
        {"D0": D0, "frozen_fraction": 0.4},
        lambda lag: (0.4 + 0.6 * np.exp(-0.5 * Q**2 * D0 * lag)) ** 2,
    ),
}


@pytest.mark.parametrize("name", DECAYS)
def test_contrast_is_the_mean_over_pairs_of_times_in_the_exposure(name):
    theta, f = DECAYS[name]
    time = np.concatenate([[0.0], T])
    c2 = hd.predict(f"exposure({name})", theta, time, q=Q, phi=[0.0], contrast=1.0, offset=0.0)
    truth = [in_exposure(f, exposure) for exposure in T]
    np.testing.assert_allclose(np.asarray(c2)[0][0, 1:], truth, atol=2e-7)


def table(folder, values, first="exposure (s)", name="contrast(q=0.008)", seed=2):
    noisy = values + SIGMA * np.random.default_rng(seed).standard_normal(len(T))
    columns, head = (
        np.column_stack([T, noisy, np.full_like(T, SIGMA)]),
        f"{first},{name},err(q=0.008)",
    )
    np.savetxt(folder / "table.csv", columns, delimiter=",", header=head, comments="")
    return folder / "table.csv"


KNOWN = {"offset": "prior=1:1e-5"}


def exposures(folder, model="brownian", **of_table):
    return table(folder, BETA * np.array([in_exposure(DECAYS[model][1], t) for t in T]), **of_table)


@pytest.mark.parametrize("name", ["brownian", "stretched"])
def test_a_table_of_exposures_is_fitted_by_the_mean_over_each(tmp_path, name):
    result = hd.fit(hd.read_g2(exposures(tmp_path, name)), name, **KNOWN)
    assert result.converged
    assert result.config["model"] == f"exposure({name})"
    for parameter, truth in DECAYS[name][0].items():
        found = result.params[parameter]
        assert abs(found.value - truth) < 4 * found.stderr_naive
        assert found.stderr_naive < 0.05 * truth
    assert result.scaling["contrast"].values == pytest.approx([BETA], abs=0.002)
    assert "D_SE" in result.derived or name != "brownian"
    assert "Gamma" in result.derived


def test_two_pulses_decay_from_the_contrast_to_half_of_it(tmp_path):
    path = table(tmp_path, BETA * (1 + DECAYS["brownian"][1](T)) / 2, first="delay (s)")
    result = hd.fit(hd.read_g2(path), "brownian")
    assert result.config["model"] == "brownian"
    assert abs(result.params["D0"].value - D0) < 4 * result.params["D0"].stderr_naive
    assert result.scaling["offset"].values == pytest.approx([1 + BETA / 2], abs=0.002)


def test_a_fit_of_exposures_is_drawn_written_and_read_again(tmp_path):
    folder = tmp_path / "fit"
    options = "--model", "brownian", "--offset", "prior=1:1e-5", "--no-pictures", "-o", str(folder)
    with pytest.raises(SystemExit) as end:
        main(["fit", str(exposures(tmp_path)), *options])
    assert end.value.code == 0
    read = hd.load_result(folder)
    assert "exposure(brownian)" in read.report()
    axes = np.ravel(read.plot.cuts().axes)[0]
    assert axes.get_xlabel() == "exposure [s]"
    np.testing.assert_allclose(axes.lines[-1].get_ydata()[0], 1 + BETA, atol=0.01)


def test_the_choice_among_all_is_made_of_exposures_too(tmp_path):
    found = hd.compare_models(hd.read_g2(exposures(tmp_path)), ["brownian", "stretched"], **KNOWN)
    assert {fit.model for fit in found.fits} == {"exposure(brownian)", "exposure(stretched)"}


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        ("power_law", {}, "depends on age"),
        ("stretched_ageing", {}, "depends on age"),
        ("brownian", {"rates": "spline"}, "leave out rates"),
        ("distribution_of_rates", {}, "cannot be averaged over an exposure"),
        ("exposure(exposure(brownian))", {}, "cannot be averaged over an exposure"),
        ("exposure(brownian, 2)", {}, "cannot be read"),
        ("squared(brownian)", {}, "cannot be read"),
        ("two_component", {}, "cannot be averaged over an exposure"),
    ],
)
def test_models_without_a_mean_over_exposures_are_refused(tmp_path, model, options, said):
    with pytest.raises(OptionError, match=said):
        hd.fit(hd.read_g2(exposures(tmp_path)), model, **options)


def test_the_mean_over_exposures_is_not_for_tables_of_delays(tmp_path):
    scan = hd.read_g2(table(tmp_path, 0.3 * np.exp(-T), first="delay (s)", name="g2-1(q=0.008)"))
    with pytest.raises(
        OptionError, match=r"contrast against exposure, which .* is not: fit brownian"
    ):
        hd.fit(scan, "exposure(brownian)")
    assert model_named("exposure(brownian)").names == model_named("brownian").names


@pytest.mark.parametrize(
    ("first", "name", "said"),
    [
        ("exposure (s)", "g2-1(q=0.008)", "of exposures only the contrast"),
        ("exposure (s)", "contrast^2(q=0.008)", "is none of"),
        ("exposure (s)", "contrasting(q=0.008)", "is none of"),
    ],
)  # fmt: skip
def test_columns_that_are_not_the_contrast_are_refused(tmp_path, first, name, said):
    with pytest.raises(SourceError, match=said):
        hd.read_g2(table(tmp_path, 0.3 * np.exp(-T), first=first, name=name))


@pytest.mark.parametrize(
    ("first", "name"),
    [
        ("exposure", "speckle contrast q=0.008"),
        ("T_exp (s)", "visibility(q=0.008)"),
        ("exposure_time", "V(q=0.008)"),
        ("exposure (s)", "K^2 (q=0.008)"),
        ("exposure (s)", "K2 (q=0.008)"),
    ],
)  # fmt: skip
def test_other_names_of_exposure_and_contrast_are_known_or_given(tmp_path, first, name):
    options = {"column_is": "contrast"} if name.startswith("V(") else {}
    scan = hd.read_g2(exposures(tmp_path, first=first, name=name), **options)
    assert scan.attributes.exposures
    assert "variance of the intensity over the square of its mean" in " ".join(
        scan.attributes.notes
    )
    with pytest.raises(HomodyneDaskError):
        hd.read_g2(tmp_path / "table.csv", column_is="g1", overwrite=True)


@pytest.mark.parametrize("name", ["frozen + exposure(brownian)", "exposure(brownian) * stretched"])
def test_an_exposure_is_no_part_of_a_sum_which_would_be_averaged_twice(name):
    with pytest.raises(OptionError, match=r"exposure\(a \+ b\)"):
        model_named(name)


@pytest.mark.parametrize("name", ["contrast [%](q=0.008)", "contrast K(q=0.008)"])
def test_per_cent_and_the_root_of_the_contrast_are_no_contrast(tmp_path, name):
    with pytest.raises(SourceError):
        hd.read_g2(table(tmp_path, np.full(len(T), 0.2), name=name))


def test_a_table_without_errors_says_that_the_model_was_not_checked(tmp_path):
    tau = np.linspace(0.05, 4, 40)
    fits = {}
    for what, f in {
        "right": np.exp(-tau),
        "wrong": np.exp(-(tau**0.8)),
    }.items():
        g2 = 1 + 0.3 * f + 0.002 * np.random.default_rng(0).normal(size=len(tau))
        path = tmp_path / f"{what}.csv"
        header = "delay (s), g2 (q=0.008)"
        np.savetxt(path, np.column_stack([tau, g2]), delimiter=",", header=header, comments="")
        fits[what] = hd.fit(hd.read_g2(path), "brownian", offset={"prior": (1.0, 1e-5)})
    assert 4 < fits["wrong"].redchi < 100
    assert "table-not-checked" in fits["wrong"].findings.codes
    assert "table-not-checked" not in fits["right"].findings.codes


def test_few_points_that_scatter_by_chance_are_no_misfit(tmp_path):
    f = np.array([in_exposure(DECAYS["brownian"][1], exposure) for exposure in T])
    misfits = []
    for seed in range(12):
        store = hd.read_g2(table(tmp_path, BETA * f, seed=seed), overwrite=True)
        misfits.append(hd.fit(store, "brownian", offset={"prior": (1.0, 1e-5)}).misfit)
    assert sum(misfits) <= 1
