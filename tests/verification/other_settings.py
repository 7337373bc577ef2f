"""Rows of settings with which nothing was tuned: other frames, bins, contrasts, rates and counts."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from tests.verification.cases import RING, SPACING, Row, Setup
from tests.verification.speckle import GAP, Detector, Motion

STILL, AGEING = Motion(2e4), Motion(5e3, -0.5)
SHEARED = Motion(2e3, gamma_dot_t0=2e-4, phi0=-30.0)
POISEUILLE = Motion(5e3, gamma_dot_t0=6e-4, phi0=50.0, parabolic=True)
CHANGING = Motion(8e3, -0.2, 1e3, gamma_dot_t0=8e-4, beta=0.4, gamma_dot_t_offset=1e-4, phi0=-30.0)
"""Of linear or parabolic flow."""
RINGS = (0.008, 0.01, 0.0125)
FIVE, SEVEN = tuple(np.linspace(0.007, 0.013, 5)), tuple(np.linspace(0.006, 0.014, 7))
DIM = Detector(1000, mean=0.3, modes=2)
FLOW = {"gap": GAP}
SEVEN_FREE = ["D0", "alpha", "D_offset", "gamma_dot_t0", "beta", "gamma_dot_t_offset", "phi0"]


# fmt: off
def rates() -> Iterator[Row]:
    for name, truth, rate, detector, where in (
        ("oscillating", "J = 10⁴·(1 + 0.5·sin(2πt/6 s))", lambda t: 1e4 * (1 + 0.5 * np.sin(t * np.pi / 3)),
         Detector(mean=0.5), {"q": FIVE, "frames": 150}),
        ("stepping", "J rises from 5,000 to 15,000 at 6 s", lambda t: np.where(t < 6, 5e3, 1.5e4),
         Detector(modes=2), {"q": RINGS, "frames": 120}),
        ("pulse", "J = 3,000, and 5 times as much within 2 s of 8 s",
         lambda t: 3e3 * (1 + 4 * np.exp(-(((t - 8) / 2) ** 2))), Detector(800, modes=8),
         {"sectors": 2, "frames": 140}),
    ):
        setup = Setup(Motion(rate=rate), "power_law", detector, **where)
        setting = f"power_law, {described(setup)}"
        yield Row("3", name, truth, setting, "misfit", setup, ("rate-changes", "rate-jumps"))


def profiles() -> Iterator[Row]:
    for name, linear, motion, detector, sectors, frames in (
        ("parabolic-dim", False, POISEUILLE, DIM, 6, 150),
        ("linear-slow", True, SHEARED, Detector(1500, modes=8), 4, 200),
        ("parabolic-seven", False, replace(CHANGING, parabolic=True), Detector(800, modes=2), 8, 100),
    ):
        models = ("laminar_flow", "poiseuille_flow") if "seven" in name else ("couette", "poiseuille")
        names = SEVEN_FREE if "seven" in name else ("D0", "gamma_dot_t0", "phi0")
        true = {name: getattr(motion, name) for name in names}
        for model, fits in zip(models, (linear, not linear), strict=True):
            setup = Setup(motion, model, detector, sectors=sectors, frames=frames, options=FLOW, true=true)
            row = partial(Row, "6", f"{name}-by-{model}", f"{'linear' if linear else 'parabolic'} profile")
            expected, codes = ("68/95, misfit 1.3 %", ()) if fits else ("misfit", ("other-profile",))
            yield row(f"{model}, {described(setup)}", expected, setup, codes)


def causes() -> Iterator[Row]:
    for name, truth, code, detector, where in (
        ("afterglow-2", "afterglow of 2 %", "first-lag", Detector(afterglow=0.02, modes=2),
         {"q": RINGS, "frames": 150}),
        ("afterglow-10", "afterglow of 10 %", "first-lag", Detector(mean=0.5, afterglow=0.1),
         {"sectors": 6, "frames": 80}),
        ("afterglow-1-bin", "afterglow of 5 %", "first-lag", Detector(2000, afterglow=0.05, modes=8), {}),
        ("beam-noise-3", "beam noise of 3 %", "beam-noise", Detector(beam=0.03, divided=False),
         {"q": SEVEN, "frames": 80}),
        ("beam-noise-10", "beam noise of 10 %", "beam-noise",
         Detector(beam=0.1, divided=False, modes=2, mean=0.5), {"sectors": 2, "frames": 150}),
        ("beam-noise-1-bin", "beam noise of 5 %", "beam-noise",
         Detector(2000, beam=0.05, divided=False, modes=8), {}),
        ("gains-5", "pixel gains drift by up to ± 5 %", "", Detector(2000, drift=0.05), {"q": FIVE}),
        ("gains-20", "pixel gains drift by up to ± 20 %", "", Detector(1000, drift=0.2, modes=2),
         {"sectors": 4, "frames": 150}),
        ("gains-1-bin", "pixel gains drift by up to ± 10 %", "", Detector(4000, drift=0.1, modes=8),
         {"frames": 150}),
    ):
        setup = Setup(AGEING, "power_law", detector, **({"q": (RING,)} | where))
        expected = "named" if code else "named, or no bias"
        undivided = "" if detector.divided else ", not divided out"
        setting = f"power_law, {described(setup)}{undivided}"
        yield Row("8", name, truth, setting, expected, setup, (code,) if code else ())
    for name, motion, model, detector, sectors, frames in (
        ("shear-6-angles", SHEARED, "power_law", DIM, 6, 150),
        ("shear-8-angles", POISEUILLE, "stretched", Detector(modes=8), 8, 80),
        ("shear-12-angles", CHANGING, "power_law", Detector(200, modes=2), 12, 120),
    ):
        setup = Setup(motion, model, detector, sectors=sectors, frames=frames, true={})
        truth = "parabolic flow" if motion.parabolic else "linear flow"
        yield Row("8", name, truth, f"{model}, {described(setup)}", "named", setup, ("one-direction",))


def records() -> Iterator[Row]:
    for name, truth, cycle, taken, motion, model, detector, where in (
        ("bursts-10", "10 frames taken, 10 lost", 20, 10, AGEING, "power_law", Detector(mean=0.5),
         {"q": FIVE}),
        ("bursts-2", "2 frames taken, 1 lost", 3, 2, SHEARED, "couette", Detector(modes=2),
         {"sectors": 6, "options": FLOW}),
        ("gap", "30 frames lost at once after 50", 80, 50, STILL, "brownian", Detector(1000, modes=8), {}),
    ):
        cycles = 100 // taken
        time = SPACING * np.arange(cycle * cycles).reshape(cycles, cycle)[:, :taken].ravel()
        setup = Setup(motion, model, detector, time=time, stored_evenly=True, **where)
        setting = f"{model}, {described(setup)}, times even in the file"
        yield Row("9", name, truth, setting, "named", setup, ("frames-missing",))


def disturbed() -> Iterator[Row]:
    for name, truth, level, frames, model, detector, where in (
        ("flash-1", "1 frame at 1.5 times the light", 1.5, (75, 75), "brownian", Detector(modes=2),
         {"q": RINGS, "frames": 150}),
        ("dimmed-5", "the last 5 frames at half the light", 0.5, (95, 99), "power_law",
         Detector(600, mean=0.5), {"q": SEVEN}),
        ("brighter-20", "20 frames at 1.2 times the light", 1.2, (100, 119), "brownian",
         Detector(1500, modes=8), {"sectors": 2, "frames": 160}),
    ):
        number = np.arange(where.get("frames", 100))
        light = np.where((number >= frames[0]) & (number <= frames[1]), level, 1.0)
        motion = AGEING if model == "power_law" else STILL
        setup = Setup(motion, model, replace(detector, light=light, divided=False), **where)
        setting = f"{model}, {described(setup)}, not divided out"
        yield Row("13", name, truth, setting, "frames named", setup, ("frames-differ",), frames)


def uneven() -> Iterator[Row]:
    steps = {
        "three-speeds": np.repeat([1.0, 3.0, 9.0], 40),
        "fast-slow-fast": np.repeat([1.0, 5.0, 1.0], 40),
        "ever-slower": np.geomspace(0.5, 5, 100),
    }
    blocks = {name: np.repeat([0, 1, 2], 40) for name in steps} | {"ever-slower": np.arange(100) // 25}
    for name, truth, motion, model, detector, where in (
        ("three-speeds", "NaN between frames of 0.1, 0.3 and 0.9 s", AGEING, "power_law", Detector(modes=2),
         {"q": RINGS}),
        ("fast-slow-fast", "NaN between fast, slow and fast frames", STILL, "brownian",
         Detector(1000, mean=0.3), {}),
        ("ever-slower", "frames of 0.05 to 0.5 s, NaN between quarters of the record", SHEARED, "couette",
         Detector(modes=8), {"sectors": 6, "options": FLOW}),
    ):
        time, block = SPACING * np.cumsum(steps[name]), blocks[name]
        where |= {"time": time - time[0], "unknown": block[:, None] != block, "frames": len(time)}
        setup = Setup(motion, model, detector, **where)
        yield Row("14", name, truth, f"{model}, {described(setup)}", "68/95, misfit 1.3 %", setup)
# fmt: on


def described(setup: Setup) -> str:
    """Return what is seen, where it is not as in most rows."""
    detector, bins = setup.detector, setup.sectors or len(setup.q)
    places = "rings" if not setup.sectors else "angles" if setup.options == FLOW else "sectors"
    words = ["1 bin"] if bins == 1 else [f"{bins} {places}"]
    words += [f"{setup.frames} frames"] * (setup.frames != 100)
    words += [f"{detector.pixels} pixels"] * (detector.pixels != 400)
    words += [f"contrast 1/{detector.modes}"] * (detector.modes != 4)
    words += [f"{detector.mean} counts"] * (detector.mean != 2.0)
    return ", ".join(words)


GROUPS = rates, profiles, causes, records, disturbed, uneven
