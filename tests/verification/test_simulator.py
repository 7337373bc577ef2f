"""The simulator against theory that it does not use: c2, contrast, counts, and what bins share."""

from dataclasses import replace

import numpy as np
import pytest

from tests.verification.__main__ import main, selected
from tests.verification.measure import coverage, line, named_first
from tests.verification.rows import ROWS
from tests.verification.speckle import Detector, Motion, intensities, two_times

TIME = 0.1 * np.arange(24)
PLACE = (0.01, 0.0)
"""q and φ: with D0 = 1e4, f = exp(-t); with shear, the phase at the walls is 1e4 times the strain."""
MANY = Detector(pixels=1000)


def parabola(turn):
    """|⟨exp(i·turn·(1 - u²))⟩|² over the gap, u from the middle to the wall."""
    u = (np.arange(5000) + 0.5) / 5000
    return np.abs(np.mean(np.exp(1j * turn * (1 - u * u)))) ** 2


# fmt: off
MOTIONS = {
    "brownian": (Motion(), lambda a, b: np.exp(a - b)),
    "rising": (Motion(rate=lambda t: 1e4 * t), lambda a, b: np.exp((a**2 - b**2) / 2)),
    "stretched": (Motion(exponent=0.6), lambda a, b: np.exp(-2 * ((b - a) / 2) ** 0.6)),
    "gamma": (Motion(spread=0.5), lambda a, b: (1 + (b - a) / 4) ** -4),
    "half lost": (Motion(lost=0.5, lost_at=10), lambda a, b: np.exp(a - b) * (1 - 0.5 * (a < 0.95 < b))),
    "linear flow": (Motion(1.0, gamma_dot=1e-4, phi0=60.0), lambda a, b: np.sinc((b - a) / 2 / np.pi) ** 2),
    "parabolic flow": (Motion(1.0, gamma_dot=6e-4, parabolic=True), lambda a, b: parabola(3 * (b - a))),
}
"""What moves, and f = |g1|² at times a and b."""
# fmt: on


@pytest.mark.parametrize("name", MOTIONS)
def test_c2_is_on_average_that_of_theory(name):
    motion, f = MOTIONS[name]
    scans = two_times(np.random.default_rng(1), motion, MANY, np.tile(PLACE, (12, 1)), TIME)
    for i, j in ((0, 3), (2, 9), (7, 12), (9, 10), (4, 23)):
        seen = scans[:, i, j]
        error = seen.std(ddof=1) / np.sqrt(len(seen))
        assert error < 0.015
        assert abs(seen.mean() - 1 - f(TIME[i], TIME[j]) / MANY.modes) < 4 * error, (i, j)


@pytest.mark.parametrize("modes", [1, 4])
def test_the_contrast_is_that_of_the_modes_and_counts_are_of_poisson(modes):
    rng = np.random.default_rng(2)
    g1 = Motion().field_correlation(*PLACE, TIME)
    (light,) = intensities(rng, [g1], 20_000, modes, 0.0)
    counts = Detector(mean=0.3).counts(rng, light)
    assert light.mean() == pytest.approx(1, abs=0.01)
    assert light[:, 0].var() == pytest.approx(1 / modes, rel=0.05)
    assert counts.mean() == pytest.approx(0.3, abs=0.005)
    assert counts[:, 0].var() == pytest.approx(0.3 + 0.09 / modes, rel=0.05)
    assert counts.dtype == float
    assert np.array_equal(counts, np.round(counts))


@pytest.mark.parametrize("neighbours", [0.0, 0.5, 0.9])
def test_neighbouring_bins_share_speckle(neighbours):
    rng = np.random.default_rng(3)
    g1 = [Motion().field_correlation(*PLACE, TIME)] * 3
    first, second, third = (light[:, 0] for light in intensities(rng, g1, 20_000, 4, neighbours))
    for other, expected in ((second, neighbours**2), (third, neighbours**4)):
        assert np.corrcoef(first, other)[0, 1] == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("overlap", [0.25, 0.5])
def test_sectors_share_their_pixels(overlap):
    few, places = Detector(pixels=40, overlap=overlap), np.tile(PLACE, (3, 1))
    rng = np.random.default_rng(4)
    scans = [two_times(rng, Motion(), few, places, TIME[:3]) for _ in range(1500)]
    correlation = np.corrcoef(np.transpose([c2[:, 0, 1] for c2 in scans]))
    assert correlation[0, 1] == pytest.approx(overlap, abs=0.08)
    assert correlation[0, 2] == pytest.approx(0, abs=0.08)


def test_disturbances_of_counts_are_what_they_say():
    rng = np.random.default_rng(5)
    light = np.ones((20_000, 24))
    plain = Detector(mean=None)
    glow = replace(plain, afterglow=0.05).counts(rng, light)
    assert np.allclose(glow[:, 0], 1)
    assert np.allclose(glow[:, 1:], 1.05)
    drifted = replace(plain, drift=0.1).counts(rng, light)
    assert drifted[:, -1].std() == pytest.approx(0.1 / np.sqrt(3), rel=0.03)
    flash = replace(plain, light=np.where(TIME == 0, 2.0, 1.0))
    counts = flash.counts(rng, light)
    assert np.allclose(flash.correlated(counts), 1)
    undivided = replace(flash, divided=False).correlated(counts)
    assert undivided[0, 1] == pytest.approx(2 * (24 / 25) ** 2)
    smooth = replace(plain, smoothed=5).correlated(np.eye(24) + np.eye(24)[::-1])
    assert smooth[5, 16] > 0


def test_a_row_makes_the_same_scan_twice_and_each_fits_its_places():
    for row in list(ROWS.values())[::17]:
        c2, q, phi, time = row.make(np.random.default_rng(6))[:4]
        assert c2.shape == (len(q), len(time), len(time)) == (len(phi), *c2.shape[1:])
        assert np.isfinite(c2[:, 0, 1]).all()
    first, again = (ROWS["jitter"].make(np.random.default_rng(6)) for _ in range(2))
    np.testing.assert_array_equal(first.c2, again.c2)


def test_intervals_and_causes_are_counted():
    values = [{"value": 10.0 + z, "stderr": 1.0, "dof": None} for z in (-3, -0.5, 0.5, 1.5)]
    assert coverage(10.0, values).startswith("50/75 (× 1.000, pulls -0.38")
    assert coverage(10.0, [*values, {"value": None, "stderr": None, "dof": None}]).endswith(
        "1 without error)"
    )
    scan = {"values": {}, "truth": {}, "codes": ["model-misfit", "frames-differ"], "misfit": True}
    scan |= {"frames": [[40, 43]], "seconds": {"simulated": 0.1, "fitted": 0.2}}
    assert named_first(ROWS["flash"], scan)
    assert not named_first(ROWS["flash"], scan | {"frames": [[41, 41]]})
    assert line(ROWS["flash"], [scan])[5:] == (
        "misfit 1",
        "right first 1, frames-differ 1",
        "0.10 + 0.20",
    )


def test_rows_are_called_by_name_pattern_or_claim(capsys):
    assert selected(["15", "jit*"]) == ["jitter", "slow", "slower"]
    with pytest.raises(SystemExit, match="no row is called"):
        selected(["nothing"])
    main([])
    assert len(capsys.readouterr().out.splitlines()) == len(ROWS)


@pytest.mark.long
def test_a_row_is_measured(capsys, tmp_path):
    main(["brownian-1-bin", "--scans", "2", "--out", str(tmp_path / "numbers.json")])
    assert "| Brownian | brownian, 1 ring | 2 |" in capsys.readouterr().out
    assert (tmp_path / "numbers.json").read_text().count('"D0"') == 4
