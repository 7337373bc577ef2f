"""The rows of the table of issue 78, by name."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from tests.verification.cases import RING, SPACING, Row, Setup
from tests.verification.speckle import Detector, Motion

STILL = Motion()
AGEING = Motion(alpha=-0.3)
LINEAR = Motion(3e3, gamma_dot=3e-4, phi0=5.0)
PARABOLIC = Motion(3e3, gamma_dot=1.2e-3, phi0=5.0, parabolic=True)
CREEPING = Motion(1e4, -0.3, 1e3, gamma_dot=3e-4, beta=0.2, gamma_dot_offset=2e-5, phi0=5.0)
RINGS = (0.008, 0.01, 0.0125)
STEADIER = Motion(1e4, -0.8, 3e3, gamma_dot=2e-4, beta=0.6, gamma_dot_offset=1e-4, phi0=5.0)
BRIGHT = Detector(pixels=600)
UNEVEN = Detector(beam=0.05, divided=False)
MANY = tuple(np.linspace(0.009, 0.0126, 10))
"""Rings 4 % apart."""
WEIGHTED = {"weighting": "speckle"}
SIMPLE = {"models": ["brownian", "power_law", "static"]}
RIGHT, WRONG, COVERED = "misfit 1.3 %", "misfit", "68/95"


def both(row: Row) -> Iterator[Row]:
    """Yield a row of fits of pairs, and of fits weighted by speckle noise."""
    yield row
    if isinstance(row.make, Setup):
        weighted = replace(row.make, options=WEIGHTED)
        text = f"{row.setting}, weighted"
        yield row._replace(name=f"{row.name}-weighted", setting=text, make=weighted)


# fmt: off
def right() -> Iterator[Row]:
    expected = f"{COVERED}, {RIGHT}"
    for name, truth, setting, setup in (
        ("brownian-3-bins", "Brownian", "brownian, 3 rings", Setup(STILL, "brownian", q=RINGS)),
        ("brownian-1-bin", "Brownian", "brownian, 1 ring", Setup(STILL, "brownian")),
        ("power-law-7-bins", "power law", "power_law, 7 sectors", Setup(AGEING, "power_law", sectors=7)),
        ("couette-9-angles", "linear flow", "couette, 9 angles", Setup(LINEAR, "couette", sectors=9)),
    ):
        yield from both(Row("0", name, truth, setting, expected, setup))
    truth = "two rings, the second decays within 2 frames"
    for model, motion in (("brownian", STILL), ("power_law", AGEING)):
        yield Row("4", f"two-rings-{model}", truth, model, RIGHT, Setup(motion, model, q=(RING, 4 * RING)))


def shared_speckle() -> Iterator[Row]:
    row = partial(Row, "1", expected=f"{COVERED}, or said")
    for count in (10, 4):
        for rho in (0.95, 0.9, 0.7, 0.5, 0.0):
            setup = Setup(AGEING, "power_law", Detector(neighbours=rho), q=MANY[:count])
            truth = f"{count} rings, field correlation of neighbours {rho:g}"
            yield row(f"rings-{rho:g}-{count}", truth, "power_law", make=setup)
    for share in (0.5, 0.25):
        setup = Setup(AGEING, "power_law", Detector(overlap=share), sectors=10)
        truth = f"10 sectors, each shares {share:.0%} of its pixels with the next"
        yield row(f"sectors-{share:g}", truth, "power_law", make=setup)
    for rho in (0.9, 0.0):
        setup = Setup(STILL, "brownian", Detector(neighbours=rho), q=MANY[:8], way="series")
        truth = f"8 rings, field correlation of neighbours {rho:g}"
        yield row(f"series-{rho:g}", truth, "brownian, over q", make=setup)


def losses() -> Iterator[Row]:
    for bins in (1, 3, 7):
        for frame, count in [(k, 100) for k in (*range(10, 100, 10), 58, 62)] + [(70, 120)]:
            motion = replace(AGEING, lost=0.5, lost_at=frame)
            setup = Setup(motion, "power_law", BRIGHT, frames=count, sectors=bins)
            name = f"loss-{frame}-{bins}" if count == 100 else f"loss-{frame}-of-{count}-{bins}"
            truth = f"half of f is lost at frame {frame} of {count}"
            yield from both(Row("2", name, truth, f"power_law, bins: {bins}", WRONG, setup, ("rate-jumps",)))


def falling(time: np.ndarray, first: float, floor: float, decay: float) -> np.ndarray:
    return floor + (first - floor) * np.exp(-time / decay)


def rates() -> Iterator[Row]:
    for name, *law in (("relaxing", 2e4, 2e3, 2.0), ("relaxing-fast", 3e4, 3e3, 1.0)):
        rate = partial(falling, first=law[0], floor=law[1], decay=law[2])
        setup = Setup(Motion(rate=rate), "power_law", BRIGHT, sectors=3)
        truth = f"J relaxes from {law[0]:,.0f} to {law[1]:,.0f} in {law[2]:g} s"
        yield from both(Row("3", name, truth, "power_law, bins: 3", WRONG, setup, ("rate-changes",)))


def choices() -> Iterator[Row]:
    for bins in (3, 1):
        setup = Setup(STILL, "", sectors=bins, options=SIMPLE, way="compare")
        text = f"of brownian, power_law, static; bins: {bins}"
        yield Row("5", f"choice-brownian-{bins}", "Brownian", text, "brownian in 95 %", setup)
        setup = Setup(Motion(spread=0.3), "", sectors=bins, way="compare")
        truth = "gamma distribution of rates, relative variance 0.3"
        yield Row("5", f"choice-gamma-{bins}", truth, f"auto; bins: {bins}", "not brownian", setup)
    setup = Setup(Motion(exponent=0.6), "", way="compare")
    yield Row("5", "choice-stretched", "exponent 0.6", "auto; bins: 1", "stretched", setup)


def profiles() -> Iterator[Row]:
    for truth, motion in (("parabolic", PARABOLIC), ("linear", LINEAR)):
        for model in ("couette", "poiseuille"):
            good = (truth == "parabolic") == (model == "poiseuille")
            setup, expected = Setup(motion, model, sectors=9), f"{COVERED}, {RIGHT}" if good else WRONG
            yield Row("6", f"{truth}-by-{model}", f"{truth} profile", f"{model}, 9 angles", expected, setup)
    for frames, motion in ((150, STEADIER), (200, replace(STEADIER, beta=1.0))):
        setup = Setup(motion, "laminar_flow", BRIGHT, sectors=12, frames=frames)
        setting = f"laminar_flow, 12 angles, {frames} frames"
        yield Row("7", f"seven-free-{frames}", f"flow, beta {motion.beta:g}", setting, COVERED, setup)


def causes() -> Iterator[Row]:
    for name, truth, detector, codes in (
        ("gains", "pixel gains drift by up to ± 10 %", Detector(drift=0.1), ()),
        ("afterglow", "afterglow of 5 %", Detector(afterglow=0.05), ()),
        ("beam-noise", "beam noise of 5 %, not divided out", UNEVEN, ("baseline",)),
    ):
        setup = Setup(AGEING, "power_law", detector, sectors=3)
        yield Row("8", name, truth, "power_law, bins: 3", "named, or no bias", setup, codes)
    for name, motion in (("constant", LINEAR), ("creeping", CREEPING)):
        for model in ("static", "brownian"):
            setup = Setup(motion, model, sectors=20)
            row = partial(Row, "8", f"{name}-flow-by-{model}", f"linear profile, {name} flow")
            yield row(f"{model}, 20 angles", "named", setup, ("one-direction",))


def bursts(_: np.random.Generator) -> np.ndarray:
    """Of each 8 frames 4 are taken."""
    return SPACING * np.arange(200).reshape(25, 8)[:, :4].ravel()


def fast_and_slow(_: np.random.Generator) -> np.ndarray:
    return SPACING * np.concatenate([np.arange(50), 60 + 4 * np.arange(50)])


def between(time: np.ndarray) -> np.ndarray:
    return (time[:, None] < 5.5) != (time < 5.5)


def jittered(rng: np.random.Generator) -> np.ndarray:
    time = SPACING * (np.arange(100) + 0.02 * rng.standard_normal(100))
    return time - time[0]


def brighter(level: float, first: int, last: int) -> Detector:
    """Return a detector that sees other light in some frames, by which c2 is not divided."""
    frames = np.arange(100)
    light = np.where((frames >= first) & (frames <= last), level, 1.0)
    return Detector(light=light, divided=False)


def records() -> Iterator[Row]:
    jumps = np.where(np.arange(100) % 3, 1.35, 0.3)
    brownian = partial(Setup, STILL, "brownian", sectors=3)
    alone = partial(Setup, model="brownian")
    frames = {"causes": ("frames-differ",)}
    for claim, name, truth, setting, expected, setup, named in (
        ("9", "bursts", "4 frames taken, 4 lost", "times even in the file", WRONG,
         brownian(time=bursts, stored_evenly=True), {}),
        ("10", "few-photons", "0.02 counts, beam jumps by a factor of 4.5", "2000 pixels", "no misfit",
         brownian(Detector(pixels=2000, mean=0.02, light=jumps)), {}),
        ("11", "counts-per-second", "counts ten times too large in the file", "", "no misfit",
         brownian(read_with={"counts": 20.0, "pixels": 400}), {}),
        ("12", "smoothed", "c2 averaged over 5 × 5 frames", "", "named",
         brownian(Detector(smoothed=5)), {"causes": ("chisqr-low-in-bins", "no-standard-error")}),
        ("13", "flash", "3 frames at twice the light", "not divided out", "frames named",
         brownian(brighter(2.0, 40, 42)), frames | {"frames": (40, 42)}),
        ("13", "beam-8-percent", "10 frames at 1.08 times the light", "not divided out", "frames named",
         brownian(brighter(1.08, 40, 49)), frames | {"frames": (40, 49)}),
        ("14", "fast-and-slow", "NaN between fast and slow frames", "", RIGHT,
         brownian(time=fast_and_slow, unknown=between), {}),
        ("15", "jitter", "frames jitter by 2 %, times known", "", "sd of pulls 1",
         alone(STILL, time=jittered), {}),
        ("15", "slow", "Γ times the record is 3", "", "sd of pulls 1", alone(Motion(6e3)), {}),
        ("15", "slower", "Γ times the record is 1.5", "", "sd of pulls 1", alone(Motion(3e3)), {}),
    ):
        text = ", ".join(filter(None, ("brownian", f"bins: {setup.sectors or 1}", setting)))
        yield Row(claim, name, truth, text, expected, setup)._replace(**named)
# fmt: on


GROUPS = (right, shared_speckle, losses, rates, choices, profiles, causes, records)
ROWS = {row.name: row for group in GROUPS for row in group()}
