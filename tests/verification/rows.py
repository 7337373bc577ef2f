"""The rows of the table in docs/evidence/verification.md, by name."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

import homodyne_dask as hd
from tests.verification import other_settings
from tests.verification.cases import RING, SPACING, Row, Setup
from tests.verification.speckle import GAP, Detector, Motion

STILL = Motion()
AGEING = Motion(alpha=-0.3)
LINEAR = Motion(3e3, gamma_dot_t0=3e-4, phi0=5.0)
PARABOLIC = Motion(3e3, gamma_dot_t0=1.2e-3, phi0=5.0, parabolic=True)
CREEPING = Motion(1e4, -0.3, 1e3, gamma_dot_t0=3e-4, beta=0.2, gamma_dot_t_offset=2e-5, phi0=5.0)
RINGS = (0.008, 0.01, 0.0125)
STEADIER = Motion(1e4, -0.8, 3e3, gamma_dot_t0=2e-4, beta=0.6, gamma_dot_t_offset=1e-4, phi0=5.0)
BRIGHT, BRIGHTEST = Detector(600), Detector(2000)
UNSTEADY = Detector(beam=0.05, divided=False)
MANY = tuple(np.linspace(0.009, 0.0126, 10))
"""Rings 4 % apart."""
FRAMES = np.arange(100)
FLOW: dict[str, Any] = {"options": {"gap": GAP}}
BURSTS = SPACING * np.arange(200).reshape(25, 8)[:, :4].ravel()
"""Of each 8 frames 4 are taken."""
FAST_AND_SLOW = SPACING * np.concatenate([np.arange(50), 60 + 4 * np.arange(50)])
SLOW = FAST_AND_SLOW > 5.5
SIMPLE = {"models": ["brownian", "power_law", "static"]}
CAUSES = {"bursts": ("frames-missing",), "counts-per-second": ("counts-contradicted",)}
STRETCHED_BY_USER = hd.separable(
    lambda theta, t1, t2, bin: jnp.exp(-((bin.q**2 * theta[0] * (t2 - t1)) ** theta[1])),
    [
        hd.Parameter("D", unit="Å²/s", bounds=(1, 1e8), scale="log"),
        hd.Parameter("exponent", bounds=(0.2, 2)),
    ],
    name="stretched_by_user",
)
RIGHT, WRONG, COVERED, SCATTER = "misfit 1.3 %", "misfit", "68/95", "sd of pulls 1"
GOOD = f"{COVERED}, {RIGHT}"


def both(row: Row) -> Iterator[Row]:
    """Yield a row of fits of pairs, and of fits weighted by speckle noise."""
    yield row
    setup = replace(row.setup, options={**row.setup.options, "weighting": "speckle"})
    yield row._replace(name=f"{row.name}-weighted", setting=f"{row.setting}, weighted", setup=setup)


# fmt: off
def right() -> Iterator[Row]:
    for name, truth, setting, setup in (
        ("brownian-3-bins", "Brownian", "brownian, 3 rings", Setup(STILL, "brownian", q=RINGS)),
        ("brownian-1-bin", "Brownian", "brownian, 1 ring", Setup(STILL, "brownian")),
        ("power-law-7-bins", "power law", "power_law, 7 sectors", Setup(AGEING, "power_law", sectors=7)),
        ("couette-9-angles", "linear flow", "couette, 9 angles", Setup(LINEAR, "couette", sectors=9, **FLOW)),
    ):
        yield from both(Row("0", name, truth, setting, GOOD, setup))
    truth = "two rings, the second decays within 2 frames"
    for model, motion in (("brownian", STILL), ("power_law", AGEING)):
        yield Row("4", f"two-rings-{model}", truth, model, RIGHT, Setup(motion, model, q=(RING, 4 * RING)))


def shared_speckle() -> Iterator[Row]:
    row = partial(Row, "1", expected=f"{COVERED}, or said")
    for count in (10, 4):
        for rho in (0.95, 0.9, 0.7, 0.5, 0.0):
            setup = Setup(AGEING, "power_law", Detector(neighbours=rho), q=MANY[:count])
            truth = f"{count} rings, field correlation of neighbours {rho:g}"
            yield row(f"rings-{rho:g}-{count}", truth, "power_law", setup=setup)
    for share in (0.5, 0.25):
        setup = Setup(AGEING, "power_law", Detector(overlap=share), sectors=10)
        truth = f"10 sectors, each shares {share:.0%} of its pixels with the next"
        yield row(f"sectors-{share:g}", truth, "power_law", setup=setup)
    for rho in (0.9, 0.0):
        setup = Setup(STILL, "brownian", Detector(neighbours=rho), q=MANY[:8], way="series")
        truth = f"8 rings, field correlation of neighbours {rho:g}"
        yield row(f"series-{rho:g}", truth, "brownian, over q", setup=setup)


def further() -> Iterator[Row]:
    row = partial(Row, "16", expected=COVERED)
    drifting, three = Motion(1e4, -0.3, 1e3), dict[str, Any](sectors=3)
    true = {"D0": 1e4, "alpha": -0.3}
    setup = Setup(drifting, "static", options={"tie": {"D_offset": "D0/10"}}, true=true, **three)
    yield row("tie", "D_offset = D0/10", "static, tied; bins: 3", setup=setup)
    setup = Setup(STILL, STRETCHED_BY_USER, q=RINGS, true={"D": 1e4, "exponent": 1.0})
    yield row("user-model", "Brownian", "a user's stretched decay, 3 rings", setup=setup)
    setup = Setup(AGEING, "power_law", sectors=500, frames=40)
    yield row("500-bins", "power law", "power_law, bins: 500, 40 frames", setup=setup)
    of_rings = {f"D0 of ring {n}": 1e4 for n in (1, 3)} | {"alpha": -0.3}
    setup = Setup(AGEING, "power_law", q=RINGS, way="rings", options={"per": {"ring": "D0"}}, true=of_rings)
    yield row("per-ring", "power law", "power_law, D0 of each of 3 rings, alpha of all", setup=setup)
    fast, slow = replace(AGEING, D0=1.5e4), replace(AGEING, D0=5e3)
    others = Setup(fast, "power_law", frames=80, **three), Setup(slow, "power_law", frames=150, sectors=2)
    of_scans = {"D0 of scan 1": 1e4, "D0 of scan 2": 1.5e4, "D0 of scan 3": 5e3, "alpha": -0.3}
    setup = Setup(
        AGEING, "power_law", way="scans", options={"per_scan": "D0"}, true=of_scans, others=others, **three
    )
    setting = "power_law, D0 of each of 3 scans of 100, 80 and 150 frames, alpha of all"
    yield row("per-scan", "power laws", setting, setup=setup, expected=GOOD)
    true = {"D0_ref": 3e3, "alpha_ref": -0.2, "D0_sample": 2e4, "alpha_sample": 0.2}
    true |= {"v0": 900.0, "v_beta": 0.2, "fraction": 0.6, "fraction_growth": 0.05, "phi0": 15.0}
    names = {"D0_sample": "D0", "alpha_sample": "alpha"}
    values = {names.get(name, name): true[name] for name in [*true][2:]}
    motion = Motion(reference=Motion(3e3, -0.2), **values)
    bounds = {"bounds": {"fraction": (0.5, 0.999)}}
    setup = Setup(motion, "two_component", Detector(1000), sectors=9, options=bounds, true=true)
    setting = "two_component, 9 angles, 1000 pixels, fraction above 0.5"
    yield row("two-component", "two components", setting, setup=setup, expected=GOOD)
    true = {"D0_sample": 8e3, "alpha_sample": 0.0, "v0": 1800.0, "v_beta": 0.0, "fraction": 0.6, "phi0": 15.0}
    motion = Motion(8e3, v0=1800.0, fraction=0.6, phi0=15.0, reference=Motion(1e-6))
    setup = Setup(motion, "beating", Detector(1000), sectors=9, true=true)
    setting = "beating, 9 angles, 1000 pixels"
    yield row("beating", "constant speed, 0.29 fringes per frame", setting, setup=setup, expected=GOOD)
    setup = Setup(AGEING, "power_law", way="posterior", options={"prior": {"alpha": [-0.3, 0.05]}}, **three)
    yield row("posterior", "power law", "posterior with a prior of alpha; bins: 3", setup=setup)


def losses() -> Iterator[Row]:
    for bins in (1, 3, 7):
        for frame, count in [(k, 100) for k in (*range(10, 100, 10), 58, 62)] + [(70, 120)]:
            motion = replace(AGEING, lost=0.5, lost_at=frame)
            setup = Setup(motion, "power_law", BRIGHT, frames=count, sectors=bins)
            name = f"loss-{frame}-{bins}" if count == 100 else f"loss-{frame}-of-{count}-{bins}"
            truth = f"half of f is lost at frame {frame} of {count}"
            yield from both(Row("2", name, truth, f"power_law, bins: {bins}", WRONG, setup, ("rate-jumps",)))


def rates() -> Iterator[Row]:
    for name, first, floor, decay in (("relaxing", 2e4, 2e3, 2.0), ("relaxing-fast", 3e4, 3e3, 1.0)):
        motion = Motion(rate=lambda t, a=first, b=floor, c=decay: b + (a - b) * np.exp(-t / c))
        setup = Setup(motion, "power_law", BRIGHT, sectors=3)
        truth = f"J relaxes from {first:,.0f} to {floor:,.0f} in {decay:g} s"
        yield from both(Row("3", name, truth, "power_law, bins: 3", WRONG, setup, ("rate-changes",)))


def choices() -> Iterator[Row]:
    for bins in (3, 1):
        setup, text = Setup(STILL, "", sectors=bins, options=SIMPLE, way="compare"), f"bins: {bins}"
        yield Row("5", f"choice-brownian-{bins}", "Brownian", f"of 3 models; {text}", "brownian 95 %", setup)
        setup = Setup(STILL, "", sectors=bins, way="compare")
        yield Row("5", f"choice-of-all-{bins}", "Brownian", f"auto; {text}", "brownian 95 %", setup)
        setup = Setup(Motion(spread=0.3), "", BRIGHTEST, sectors=bins, way="compare")
        text, truth = f"auto; {text}, 2000 pixels", "gamma distribution of rates, variance 0.3"
        yield Row("5", f"choice-gamma-{bins}", truth, text, "not brownian", setup)
    for pixels in (400, 2000):
        setup = Setup(Motion(exponent=0.6), "", Detector(pixels), way="compare")
        text = f"auto; bins: 1, {pixels} pixels"
        yield Row("5", f"choice-stretched-{pixels}", "exponent 0.6", text, "stretched", setup)
        setup = Setup(Motion(alpha=-0.5, exponent=0.6), "", Detector(pixels), way="compare")
        truth = "exponent 0.6, J as t^-0.5"
        yield Row("5", f"choice-ageing-{pixels}", truth, text, "stretched_ageing", setup)


def profiles() -> Iterator[Row]:
    for truth, motion in (("parabolic", PARABOLIC), ("linear", LINEAR)):
        for model in ("couette", "poiseuille"):
            good = (truth == "parabolic") == (model == "poiseuille")
            setup, expected = Setup(motion, model, sectors=9, **FLOW), GOOD if good else WRONG
            row = Row("6", f"{truth}-by-{model}", f"{truth} profile", f"{model}, 9 angles", expected, setup)
            yield row if good else row._replace(causes=("other-profile",))
    for frames, motion in ((150, STEADIER), (200, replace(STEADIER, beta=1.0))):
        setup = Setup(motion, "laminar_flow", BRIGHT, sectors=12, frames=frames, **FLOW)
        setting = f"laminar_flow, 12 angles, {frames} frames"
        yield Row("7", f"seven-free-{frames}", f"flow, beta {motion.beta:g}", setting, COVERED, setup)


def causes() -> Iterator[Row]:
    for name, truth, detector, *codes in (
        ("gains", "pixel gains drift by up to ± 10 %", Detector(2000, drift=0.1)),
        ("afterglow", "afterglow of 5 %", Detector(afterglow=0.05), "first-lag"),
        ("beam-noise", "beam noise of 5 %, not divided out", UNSTEADY, "beam-noise"),
    ):
        setup, text = Setup(AGEING, "power_law", detector, sectors=3), f"bins: 3, {detector.pixels} pixels"
        yield Row("8", name, truth, f"power_law, {text}", "named, or no bias", setup, tuple(codes))
    for name, motion in (("constant", LINEAR), ("creeping", CREEPING)):
        for model in ("static", "brownian"):
            setup, truth = Setup(motion, model, sectors=20), f"linear profile, {name} flow"
            row = partial(Row, "8", f"{name}-flow-by-{model}", truth, f"{model}, 20 angles", "named")
            yield row(setup, ("one-direction",))


def records() -> Iterator[Row]:
    brownian = partial(Setup, STILL, "brownian", sectors=3)
    for claim, name, truth, setting, expected, setup in (
        ("9", "bursts", "4 frames taken, 4 lost", ", times even in the file", WRONG,
         brownian(time=BURSTS, stored_evenly=True)),
        ("10", "few-photons", "0.02 counts, beam jumps by a factor of 4.5", ", 2000 pixels", "no misfit",
         brownian(Detector(2000, mean=0.02, light=np.where(FRAMES % 3, 1.35, 0.3)))),
        ("11", "counts-per-second", "counts ten times too large in the file", "", "no misfit",
         brownian(read_with={"counts": 20.0, "pixels": 400})),
        ("14", "fast-and-slow", "NaN between fast and slow frames", "", RIGHT,
         brownian(time=FAST_AND_SLOW, unknown=SLOW[:, None] != SLOW)),
        ("15", "jitter", "times known, jitter 2 %", "", SCATTER, Setup(STILL, "brownian", jitter=0.02)),
        ("15", "slow", "Γ times the record is 3", "", SCATTER, Setup(Motion(6e3), "brownian")),
        ("15", "slower", "Γ times the record is 1.5", "", SCATTER, Setup(Motion(3e3), "brownian")),
    ):
        setting = f"brownian, bins: {setup.sectors or 1}{setting}"
        yield Row(claim, name, truth, setting, expected, setup, CAUSES.get(name, ()))
    setup, truth = brownian(Detector(smoothed=5)), "c2 averaged over 5 × 5 frames"
    yield Row("12", "smoothed", truth, "brownian, bins: 3", "named", setup, ("c2-smoothed",))
    for name, truth, level, frames in (
        ("flash", "3 frames at twice the light", 2.0, (40, 42)),
        ("beam-8-percent", "10 frames at 1.08 times the light", 1.08, (40, 49)),
    ):
        light = np.where((frames[0] <= FRAMES) & (frames[1] >= FRAMES), level, 1.0)
        setup, text = brownian(Detector(light=light, divided=False)), "brownian, bins: 3, not divided out"
        yield Row("13", name, truth, text, "frames named", setup, ("frames-differ",), frames)
# fmt: on


GROUPS = right, shared_speckle, losses, rates, choices, profiles, causes, records, further
GROUPS += other_settings.GROUPS
ROWS = {row.name: row for group in GROUPS for row in group()}
