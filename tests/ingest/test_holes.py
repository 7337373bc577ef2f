"""Values that nobody measured are left out and named; measured ones, however odd, stay."""

from typing import Any

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import SourceError
from ingest.clean import clean, leave_out_single, measure_scatter

FRAMES, DT, Q, D0 = 120, 0.5, 0.01, 1000.0
LAG = np.abs(np.subtract.outer(np.arange(FRAMES), np.arange(FRAMES)))


def counted(rng, g1, pixels, mean, modes=4):
    """Photons of (frame, pixel): Gaussian fields of this correlation; mean: one, or one for each frame."""
    root = np.linalg.cholesky(g1 + 1e-9 * np.eye(len(g1)))
    fields = rng.standard_normal((2 * modes, len(g1), pixels))
    intensity = np.square(np.einsum("ij,mjp->mip", root, fields)).mean(axis=0)
    return rng.poisson(intensity * np.broadcast_to(mean, len(g1))[:, None]).astype(float)


def two_time(n):
    return n @ n.T / n.shape[1] / np.outer(n.mean(1), n.mean(1))


def pearson(n):
    apart = n - n.mean(1, keepdims=True)
    return apart @ apart.T / n.shape[1] / np.outer(n.std(1), n.std(1))


NORMS = {
    "c2": two_time, "c2 - 1": lambda n: two_time(n) - 1, "Pearson": pearson,
    "by the mean": lambda n: n @ n.T / n.shape[1] / n.mean() ** 2,
}  # fmt: skip
MEASURED = two_time(counted(np.random.default_rng(1), np.exp(-(Q**2) * 500 * LAG * DT), 1500, 2.0))


def chunk(first, last, beyond, end):
    hole = np.zeros((FRAMES, FRAMES), bool)
    hole[first:last, beyond:end] = True
    return hole | hole.T


CROSS, CORNER = chunk(40, 43, 0, FRAMES), chunk(0, 60, 60, FRAMES)
RANDOM = np.triu(np.random.default_rng(2).random((FRAMES, FRAMES)) < 0.05, 1)
RANDOM |= RANDOM.T
CHUNK, PAIR = chunk(0, 30, 60, 90), chunk(30, 31, 60, 61)
HOLES = [
    ("a chunk of 0", CHUNK, 0.0, 1),
    ("a chunk of -1", CHUNK, -1.0, 1),
    ("a chunk of 1, as c2 that has decayed", CHUNK, 1.0, 1),
    ("a chunk of 0 in c2 - 1", CHUNK, 0.0, 0),
    ("the last frames", chunk(90, FRAMES, 90, FRAMES), 0.0, 1),
    ("most pairs", chunk(40, FRAMES, 40, FRAMES), 0.0, 1),
    ("the far corner, whose median is the baseline", CORNER, -1.0, 1),
    ("a cross of frames", CROSS, -1.0, 1),
    ("one frame", chunk(50, 51, 0, FRAMES), -1.0, 1),
    ("5 % of the pairs 9999", RANDOM, 9999.0, 1),
    ("5 % of the pairs 1e20", RANDOM, 1e20, 1),
    ("one pair 0", PAIR, 0.0, 1),
    ("one pair 9999", PAIR, 9999.0, 1),
]


@pytest.mark.parametrize(("word", "hole", "value", "baseline"), HOLES, ids=[h[0] for h in HOLES])
def test_a_hole_is_left_out_and_named_and_nothing_else_is(word, hole, value, baseline, tmp_path):
    c2 = np.where(hole, value, MEASURED - 1 + baseline)
    np.savez(tmp_path / "H.npz", c2=c2, q=Q, phi=np.nan, dt=DT)
    report = hd.ingest(tmp_path / "H.npz")
    stored = hd.open_dataset(report.store).dataset["c2"].values[0]
    expected = np.where(hole | np.tri(FRAMES, dtype=bool), np.nan, MEASURED)
    assert np.allclose(stored, expected, atol=1e-6, equal_nan=True)
    pairs = np.argwhere(np.triu(hole, 1))
    (note,) = (note for note in report.notes if "--keep-outliers" in note)
    assert note.startswith(f"{len(pairs):,} pair")
    assert f"(first {value:g} at frames {pairs[0][0]} and {pairs[0][1]} of bin 1" in note


def test_a_fit_of_data_with_holes_has_the_value_of_the_sample(tmp_path):
    c2 = np.where(CHUNK, 0.0, np.where(RANDOM, 9999.0, MEASURED))
    scan = hd.open_dataset(hd.ingest(c2, tmp_path / "h", q=Q, phi=np.nan, dt=DT).store)
    assert hd.fit(scan, "brownian").params["D0"].value == pytest.approx(D0, rel=0.15)


def test_values_stay_on_request_and_masked_arrays_are_missing_data(tmp_path):
    options: dict[str, Any] = {"q": Q, "phi": np.nan, "dt": DT, "keep_copies": True}
    c2 = np.where(CHUNK, 0.0, MEASURED)
    kept = hd.ingest(c2, tmp_path / "kept", **options, keep_outliers=True)
    assert kept.n_pairs == FRAMES * (FRAMES - 1) // 2
    masked = hd.ingest(np.ma.array(MEASURED, mask=CHUNK), tmp_path / "masked", **options)
    assert (masked.n_pairs, masked.notes) == (kept.n_pairs - 900, ())


def excluded(c2):
    c2 = np.array(c2, np.float32)
    np.fill_diagonal(c2, 1.3)
    try:
        cleaned = clean(c2, len(c2), "bin", keep_outliers=False)
    except SourceError:
        return []
    sigma = measure_scatter(cleaned.c2)
    return cleaned.excluded + (leave_out_single(cleaned.c2, sigma) if sigma else [])


def dynamics(n):
    """Field correlations that change slowly, at once, back and forth, and in part."""
    lag, t = np.abs(np.subtract.outer(np.arange(n), np.arange(n))), np.arange(n)
    burst, back = np.cumsum(np.where(t // 4 == 2, 2.0, 0.02)), (t // 5 == 3)
    return {
        "fast": np.exp(-lag / 2),
        "slow": np.exp(-lag * 3 / n),
        "sheared": np.exp(-lag / 20) * np.sinc(lag / 12),
        "a gel": 0.6 + 0.4 * np.exp(-lag / 5),
        "ageing": np.exp(-np.abs(np.subtract.outer(2.0 * np.log1p(t), 2.0 * np.log1p(t)))),
        "a burst": np.exp(-np.abs(np.subtract.outer(burst, burst))),
        "a state that returns": np.where(back[:, None] == back, 0.95, 0.05) + 0.05 * np.eye(n),
    }


def beam(rng, n, mean):
    frame = np.arange(n)
    return {
        "steady": np.full(n, mean),
        "two flashes": mean * np.where(np.isin(frame, [n // 4, n // 2]), 30, 1),
        "a trip": mean * np.where(np.abs(frame - n // 2) < n // 10, 0.01, 1),
        "pulses": mean * rng.gamma(2, 0.5, n),
    }


@pytest.mark.parametrize("mean", [0.01, 0.1, 1.0, 10.0])
@pytest.mark.parametrize(("n", "pixels"), [(10, 300), (40, 20), (40, 300)])
def test_no_measured_photon_is_left_out(n, pixels, mean):
    rng = np.random.default_rng([n, pixels, int(100 * mean)])
    for motion, g1 in dynamics(n).items():
        for light, flux in beam(rng, n, mean).items():
            photons, norm = counted(rng, g1, pixels, flux), rng.choice([*NORMS])
            with np.errstate(all="ignore"):
                assert excluded(NORMS[norm](photons)) == [], (motion, light, norm)


FALLS = 1 + 0.2 * np.exp(-LAG / 10)
AGES = 1 + 0.2 * np.exp(-np.abs(np.subtract.outer(*[8 * np.arange(FRAMES) ** 0.5] * 2)))
KEPT = {
    "clipped at 1": np.maximum(MEASURED, 1),
    "clipped at the top": np.minimum(MEASURED, 1.15),
    "rounded": np.round(MEASURED, 2),
    "rounded more coarsely than noise": np.round(MEASURED, 1),
    "in bytes, saturated": ((MEASURED - 0.9) * 600).clip(0, 255).astype(np.uint8),
    "in two values": (MEASURED > 1.1) * 255,
    "in float16": MEASURED.astype(np.float16),
    "each pair four times": np.kron(MEASURED[:60, :60], np.ones((2, 2))),
    "without noise": FALLS,
    "ageing without noise": AGES,
    "with an artefact at lag 1": MEASURED + 0.5 * (LAG == 1),
}


@pytest.mark.parametrize("word", KEPT)
def test_numbers_that_repeat_by_how_they_are_kept_stay(word):
    assert excluded(KEPT[word]) == []


@pytest.mark.parametrize("half", ["mean", "upper"])
def test_integers_are_numbers_without_overflow(half):
    c2 = np.round(MEASURED * 20000).astype(np.int16)
    c2[CHUNK] = -32768
    cleaned = clean(c2, FRAMES, "bin", half=half, keep_outliers=False)
    expected = np.where(CHUNK | np.tri(FRAMES, dtype=bool), np.nan, np.round(MEASURED * 20000))
    assert np.array_equal(cleaned.c2, expected.astype(np.float32), equal_nan=True)


@pytest.mark.parametrize(("offset", "says"), [(0.0, False), (1e5, False), (1e6, True)])
def test_noise_below_the_spacing_of_float32_is_said(tmp_path, offset, says):
    c2 = np.triu(offset + FALLS + np.random.default_rng(0).normal(0, 0.01, FALLS.shape), 1)
    report = hd.ingest(c2, tmp_path / "s", q=Q, phi=0.0, dt=DT)
    assert any("less than the distance of the numbers" in note for note in report.notes) == says
