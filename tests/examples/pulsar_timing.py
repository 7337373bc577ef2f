"""Ten years of a pulsar's arrival times in three bands, timed: no XPCS anywhere.

    python -m tests.examples.pulsar_timing

The phase at the barycentre is F0·τ + ½F1·τ² + F2·τ³/6, τ = t - PEPOCH, t free of the dispersion
DM·K/ν². A double resolves 22 ns at 5·10¹⁰ cycles, so the phase of the ephemeris at hand is taken once
in extended precision, and corrections to it are fitted: residual = observed - what they add.
"""

import time
from dataclasses import dataclass

import numpy as np
import xarray

import homodyne_dask as hd

K = 4149.377593360996
"""s MHz² per pc/cm³."""
BANDS = (820.0, 1400.0, 2300.0)
"""MHz."""
YEARS = 10
EPHEMERIS = {"F0": 339.315687288, "F1": -1.6148e-13, "F2": 2e-24, "DM": 10.3940}
TRUTH = {"dF0": 3e-13, "dF1": -2e-20, "dF2": 3e-28, "dDM": 2e-4, "offset": 4e-6}
"""What the ephemeris is short of: Hz, Hz/s, Hz/s², pc/cm³, s."""
UNITS = {"dF0": "Hz", "dF1": "Hz/s", "dF2": "Hz/s²", "dDM": "pc/cm³", "offset": "s"}


@dataclass(frozen=True)
class Arrivals:
    """Arrival times as day and fraction, and what made them."""

    day: np.ndarray
    fraction: np.ndarray
    band: np.ndarray
    """MHz."""
    sigma: np.ndarray
    """s."""


def phase(tau: np.ndarray, F0: float, F1: float, F2: float) -> np.ndarray:
    """Cycles since the epoch, tau in s, in extended precision."""
    tau = tau.astype(np.longdouble)
    return np.longdouble(F0) * tau + 0.5 * F1 * tau**2 + F2 * tau**3 / 6


def arrivals(number: int = 10_000, seed: int = 0) -> Arrivals:
    """Pulses at random over YEARS, one of three bands each, 0.2 to 2 µs of noise."""
    rng = np.random.default_rng(seed)
    band = rng.choice(BANDS, number)
    sigma = 10 ** rng.uniform(-6.7, -5.7, number)
    day = np.sort(rng.integers(-180 * YEARS, 180 * YEARS, number)).astype(float)
    tau = (day * 86400 + rng.uniform(0, 86400, number)).astype(np.longdouble)
    spin = [EPHEMERIS[name] + TRUTH["d" + name] for name in ("F0", "F1", "F2")]
    for _ in range(3):  # onto the nearest pulse
        cycles = phase(tau, *spin)
        tau = tau - (cycles - np.rint(cycles)) / spin[0]
    late = (EPHEMERIS["DM"] + TRUTH["dDM"]) * K / band**2 + TRUTH["offset"]
    tau = tau + late + sigma * rng.standard_normal(number)
    day = np.floor(tau / 86400)
    return Arrivals(day.astype(float), (tau / 86400 - day).astype(float), band, sigma)


def residuals(observed: Arrivals) -> xarray.Dataset:
    """Arrival less the nearest pulse of the ephemeris [s], the one use of extended precision."""
    tau = (observed.day.astype(np.longdouble) + observed.fraction) * 86400
    tau = tau - EPHEMERIS["DM"] * K / np.longdouble(observed.band) ** 2
    cycles = phase(tau, *(EPHEMERIS[name] for name in ("F0", "F1", "F2")))
    apart = (cycles - np.rint(cycles)) / EPHEMERIS["F0"]
    columns = {"late": apart, "tau": tau, "band": observed.band, "sigma": observed.sigma}
    return xarray.Dataset({n: ("arrival", values.astype(float)) for n, values in columns.items()})


def timing(theta, late, tau, band, sigma):
    """What the corrections leave of a residual, over its standard deviation."""
    dF0, dF1, dF2, dDM, offset = theta
    turned = dF0 * tau + 0.5 * dF1 * tau**2 + dF2 * tau**3 / 6
    return (late + turned / EPHEMERIS["F0"] - dDM * K / band**2 - offset) / sigma


MODEL = hd.model(timing, parameters=[hd.Parameter(*named) for named in UNITS.items()])
FIRST = dict.fromkeys(TRUTH, 0.0)


def design(data: xarray.Dataset) -> np.ndarray:
    """The derivatives of the residual's prediction by each correction, in extended precision."""
    tau = data["tau"].values.astype(np.longdouble)
    F0 = np.longdouble(EPHEMERIS["F0"])
    band = np.longdouble(K) / data["band"].values.astype(np.longdouble) ** 2
    return np.stack([-tau / F0, -(tau**2) / 2 / F0, -(tau**3) / 6 / F0, band, np.ones_like(tau)], 1)


def main() -> None:
    """Fit twice and print the second, which finds everything compiled."""
    data = residuals(arrivals())
    for what in ("cold", "warm"):
        began = time.perf_counter()
        result = hd.fit(data, MODEL, initial=FIRST)
        print(f"{what}: {len(data.arrival):,} arrivals in {time.perf_counter() - began:.3f} s")
    print(result)
    pulls = (result.popt - list(TRUTH.values())) / result.stderr
    print("(value - truth) / error: " + ", ".join(f"{pull:+.2f}" for pull in pulls))


if __name__ == "__main__":
    main()
