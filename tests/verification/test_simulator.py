"""The simulator against theory that it does not use: c2, contrast, counts, and what bins share."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.special

from tests.verification.__main__ import main, selected
from tests.verification.measure import coverage, line, named_first
from tests.verification.rows import ROWS
from tests.verification.speckle import Detector, Motion, intensities, two_times

TIME = 0.1 * np.arange(24)
PLACE = (0.01, 0.0)
"""q and φ: with D0 = 1e4, f = exp(-t); with shear, the phase at the walls is 1e4 times the strain."""
MANY = Detector(pixels=500)


def parabola(phase):
    """|∫₀¹ exp(i·phase·u²) du|², by Fresnel integrals."""
    z = np.sqrt(2 * phase / np.pi)
    return np.hypot(*scipy.special.fresnel(z)) ** 2 / z**2


# fmt: off
MOTIONS = {
    "brownian": (Motion(), lambda a, b: np.exp(a - b)),
    "rising": (Motion(rate=lambda t: 1e4 * t), lambda a, b: np.exp((a**2 - b**2) / 2)),
    "stretched": (Motion(exponent=0.6), lambda a, b: np.exp(-2 * ((b - a) / 2) ** 0.6)),
    "gamma": (Motion(spread=0.5), lambda a, b: (1 + (b - a) / 4) ** -4),
    "half lost": (Motion(lost=0.5, lost_at=10), lambda a, b: np.exp(a - b) * (1 - 0.5 * (a < 0.95 < b))),
    "linear flow": (Motion(1.0, gamma_dot_t0=2e-4, phi0=60), lambda a, b: np.sinc((b - a) / np.pi) ** 2),
    "parabolic flow": (Motion(1.0, gamma_dot_t0=6e-4, parabolic=True), lambda a, b: parabola(3 * (b - a))),
    "beats": (
        Motion(reference=Motion(1e-3), v0=300.0),
        lambda a, b: abs(1 + np.exp((3j - 0.5) * (b - a))) ** 2 / 4,
    ),
    "a growing part": (
        Motion(1e-3, reference=Motion(), fraction=0.2, fraction_growth=1.5),
        lambda a, b: np.divide(
            (np.exp(-(b - a) / 2) + np.exp(1.5 * (a + b)) / 16) ** 2,
            (1 + np.exp(3 * a) / 16) * (1 + np.exp(3 * b) / 16),
        ),
    ),
}
"""What moves, and f = |g1|² at times a and b."""
# fmt: on


@pytest.mark.parametrize("name", MOTIONS)
def test_c2_is_on_average_that_of_theory(name):
    motion, f = MOTIONS[name]
    scans = two_times(np.random.default_rng(1), motion, MANY, np.tile(PLACE, (12, 1)), TIME)
    g1 = motion.field_correlation(*PLACE, TIME)
    for i, j in ((0, 3), (2, 9), (7, 12), (9, 10), (4, 23)):
        seen, expected = scans[:, i, j], f(TIME[i], TIME[j])
        error = seen.std(ddof=1) / np.sqrt(len(seen))
        assert abs(g1[i, j]) ** 2 == pytest.approx(expected, abs=1e-3)
        assert abs(seen.mean() - 1 - expected / MANY.modes) < 4 * error < 0.12, (i, j)


@pytest.mark.parametrize("modes", [1, 4])
def test_the_contrast_is_that_of_the_modes_and_counts_are_of_poisson(modes):
    rng, g1 = np.random.default_rng(2), Motion().field_correlation(*PLACE, TIME)
    (light,) = intensities(rng, [g1], 10_000, modes, 0.0)
    counts = Detector(mean=0.3).counts(rng, light)
    assert light[:, 0].var() == pytest.approx(1 / modes, rel=0.08)
    assert counts.mean() == pytest.approx(0.3, abs=0.006)
    assert counts[:, 0].var() == pytest.approx(0.3 + 0.09 / modes, rel=0.08)
    assert np.array_equal(counts, np.round(counts))


@pytest.mark.parametrize("neighbours", [0.0, 0.5, 0.9])
def test_neighbouring_bins_share_speckle(neighbours):
    rng, g1 = np.random.default_rng(3), [Motion().field_correlation(*PLACE, TIME)] * 3
    first, second, third = (light[:, 0] for light in intensities(rng, g1, 8000, 4, neighbours))
    for other, expected in ((second, neighbours**2), (third, neighbours**4)):
        assert np.corrcoef(first, other)[0, 1] == pytest.approx(expected, abs=0.04)


@pytest.mark.parametrize("overlap", [0.25, 0.5])
def test_sectors_share_their_pixels(overlap):
    few, rng = Detector(pixels=40, overlap=overlap), np.random.default_rng(4)
    scans = [two_times(rng, Motion(), few, np.array([PLACE] * 3), TIME[:3]) for _ in range(1000)]
    correlation = np.corrcoef(np.transpose([c2[:, 0, 1] for c2 in scans]))
    assert correlation[0, 1] == pytest.approx(overlap, abs=0.1)
    assert correlation[0, 2] == pytest.approx(0, abs=0.1)


def test_disturbances_of_counts_are_what_they_say():
    rng, light = np.random.default_rng(5), np.ones((5000, 24))
    plain = Detector(mean=None)
    glow = replace(plain, afterglow=0.05).counts(rng, light)
    np.testing.assert_allclose(glow, np.where(TIME > 0, 1.05, 1) * light)
    drifted = replace(plain, drift=0.1).counts(rng, light)
    assert drifted[:, -1].std() == pytest.approx(0.1 / np.sqrt(3), rel=0.03)
    flash = replace(plain, light=np.where(TIME == 0, 2.0, 1.0))
    counts = flash.counts(rng, light)
    np.testing.assert_allclose(flash.correlated(counts), 1)
    undivided = replace(flash, divided=False).correlated(counts)
    assert undivided[0, 1] == pytest.approx(2 * (24 / 25) ** 2)
    smooth = replace(plain, smoothed=5).correlated(np.eye(24) + np.eye(24)[::-1])
    assert smooth[5, 16] > 0


def test_a_row_makes_the_same_scan_twice_and_each_fits_its_places():
    for row in list(ROWS.values())[::40]:
        c2, q, phi, time = row.setup.scan(np.random.default_rng(6))
        assert c2.shape == (len(q), len(time), len(time)) == (len(phi), *c2.shape[1:])
        assert np.isfinite(c2[:, 0, 1]).all()
        np.testing.assert_array_equal(row.setup.scan(np.random.default_rng(6))[0], c2)


def test_intervals_and_causes_are_counted():
    values = [(10.0 + z, 1.0, None) for z in (-3, -0.5, 0.5, 1.5)]
    assert coverage(10.0, values).startswith("50/75 (× 1.000, pulls -0.38")
    assert coverage(10.0, [*values, (None, None, None)]).endswith("1 without error)")
    row = ROWS["flash"]._replace(setup=replace(ROWS["flash"].setup, model=""))
    scan = {"codes": ["model-misfit", "frames-differ"], "misfit": True, "frames": [[40, 43]]}
    scan["seconds"] = {"simulated": 0.1, "fitted": 0.2}
    assert named_first(row, scan)
    assert not named_first(row, scan | {"frames": [[41, 41]]})
    assert line(row, [scan])[5:7] == ("misfit 1", "right first 1, frames-differ 1")


@pytest.mark.long
def test_rows_are_called_by_name_pattern_or_claim_and_measured(capsys, tmp_path):
    assert selected(["15", "jit*"]) == ["jitter", "slow", "slower"]
    with pytest.raises(SystemExit, match="no row is called"):
        selected(["nothing"])
    main(["brownian-1-bin", "--scans", "2", "--out", str(tmp_path / "numbers.json")])
    assert "| brownian-1-bin | Brownian | brownian, 1 ring | 2 |" in capsys.readouterr().out
    assert (tmp_path / "numbers.json").read_text().count('"D0"') == 2
