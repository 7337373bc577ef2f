"""Photons of a moving sample, from Gaussian fields: no formula of c2 is used, nor code of the library.

The field of a coherence mode is white noise times the root of the field correlation g1(t1, t2). A pixel
counts photons of the mean intensity of its modes; c2 is averaged over the pixels of a bin.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

GAP, LAYERS = 2e6, 400
"""Å, and points across it for its average."""
RIDGE = 1e-6
"""Power of the field without memory: the root of g1 is then unique and well conditioned."""


@dataclass(frozen=True)
class Motion:
    """How the sample moves: what decides the field correlation g1 of two frames."""

    D0: float = 1e4
    """J = D0·t^alpha + D_offset, Å²/s; integrals are those of the trapezoid rule over frames."""
    alpha: float = 0.0
    D_offset: float = 0.0
    rate: Callable[[np.ndarray], np.ndarray] | None = None
    """J at times, in place of the power law."""
    exponent: float = 1.0
    """g1 = exp(-x^exponent), x = ½ q² ΔC."""
    spread: float = 0.0
    """Relative variance of gamma-distributed rates: g1 = (1 + spread·x)^(-1/spread)."""
    lost: float = 0.0
    """Share of f = |g1|² that is lost at once before the frame lost_at."""
    lost_at: int = 0
    gamma_dot_t0: float = 0.0
    """Shear rate gamma_dot_t0·t^beta + gamma_dot_t_offset, 1/s; of a parabolic profile that at the wall."""
    beta: float = 0.0
    gamma_dot_t_offset: float = 0.0
    phi0: float = 0.0
    parabolic: bool = False
    """Velocity γ̇L/4·(1 - u²) between walls at u = ±1, in place of γ̇·height."""
    reference: "Motion | None" = None
    """What scatters beside it and does not move along phi0."""
    v0: float = 0.0
    """Speed v0·t^v_beta relative to the reference, Å/s."""
    v_beta: float = 0.0
    fraction: float = 0.5
    """Of the field at time 0, beside a reference; its odds grow by exp(fraction_growth·t)."""
    fraction_growth: float = 0.0

    def field_correlation(self, q: float, phi: float, time: np.ndarray) -> np.ndarray:
        """Return g1 of all pairs of frames; complex under parabolic flow, and beside a reference."""
        if self.reference is not None:
            return self.beside(self.reference, q, phi, time)
        late = np.maximum(time, np.median(np.diff(time)) / 2)
        J = self.D0 * late**self.alpha + self.D_offset if self.rate is None else self.rate(time)
        C = integral(np.maximum(J, 1e-10), time)
        x = 0.5 * q**2 * np.abs(C[:, None] - C)
        g1 = np.exp(-(x**self.exponent))
        if self.spread:
            g1 = (1 + self.spread * x) ** (-1 / self.spread)
        after = np.arange(len(time)) >= self.lost_at
        g1 = np.where(after[:, None] == after, g1, g1 * np.sqrt(1 - self.lost))
        if not self.gamma_dot_t0:
            return g1
        G = integral(self.gamma_dot_t0 * late**self.beta + self.gamma_dot_t_offset, time)
        u = (2 * np.arange(LAYERS) + 1) / LAYERS - 1
        path = GAP / 4 * (1 - u**2) if self.parabolic else GAP / 2 * u
        turn = np.exp(1j * q * np.cos(np.deg2rad(self.phi0 - phi)) * G[:, None] * path)
        flow = turn @ turn.conj().T / LAYERS
        return g1 * (flow if self.parabolic else flow.real)

    def beside(self, other: "Motion", q: float, phi: float, time: np.ndarray) -> np.ndarray:
        """Return g1 of the sum of the fields of this and of another motion."""
        late = np.maximum(time, np.median(np.diff(time)) / 2)
        V = integral(self.v0 * late**self.v_beta, time)
        odds = self.fraction / (1 - self.fraction) * np.exp(self.fraction_growth * time)
        moved = odds / (1 + odds) * np.exp(1j * q * np.cos(np.deg2rad(self.phi0 - phi)) * V)
        resting = 1 / (1 + odds)
        moving = replace(self, reference=None).field_correlation(q, phi, time)
        total = np.outer(moved, moved.conj()) * moving
        total += np.outer(resting, resting) * other.field_correlation(q, phi, time)
        size = np.sqrt(np.diagonal(total).real)
        return total / np.outer(size, size)


@dataclass(frozen=True)
class Detector:
    """What is counted of the light, and how c2 is made of it."""

    pixels: int = 400
    modes: int = 4
    """Of a pixel: the contrast is 1/modes."""
    mean: float | None = 2.0
    """Counts per pixel and frame; None: the intensity itself, without counting noise."""
    drift: float = 0.0
    """The gain of each pixel changes over the record by up to this share, up or down."""
    afterglow: float = 0.0
    """Share of the counts of a frame that is read again with the next."""
    beam: float = 0.0
    """Standard deviation of the light from frame to frame, relative."""
    light: np.ndarray | None = None
    """Relative light of each frame."""
    divided: bool = True
    """Whether counts are divided by the mean of their frame, or by that of the record."""
    neighbours: float = 0.0
    """Correlation of the fields of each bin and the next, pixel by pixel: speckles wider than bins."""
    overlap: float = 0.0
    """Share of its pixels that each bin shares with the next; all then see what the first one sees."""
    smoothed: int = 1
    """c2 is averaged over this many frames along both axes."""

    def counts(self, rng: np.random.Generator, intensity: np.ndarray) -> np.ndarray:
        """Return the counts (pixel, frame) of an intensity of mean 1."""
        pixels, frames = intensity.shape
        light = np.ones(frames) if self.light is None else self.light
        rng.standard_normal(frames)  # not used: scans of all rows keep their photons
        expected = intensity * light * (1 if self.mean is None else self.mean)
        if self.drift:
            slope = rng.uniform(-self.drift, self.drift, (pixels, 1))
            expected = expected * (1 + slope * np.linspace(0, 1, frames))
        counts = expected if self.mean is None else rng.poisson(expected).astype(float)
        counts[:, 1:] += self.afterglow * counts[:, :-1]
        return counts

    def correlated(self, counts: np.ndarray) -> np.ndarray:
        """Return c2 (frame, frame) of counts (pixel, frame): ⟨n1 n2⟩ / (⟨n1⟩⟨n2⟩) over pixels."""
        mean = counts.mean(0) if self.divided else np.full(counts.shape[1], counts.mean())
        mean = np.where(mean > 0, mean, np.nan)
        c2 = counts.T @ counts / len(counts) / np.outer(mean, mean)
        if self.smoothed == 1:
            return c2
        np.fill_diagonal(c2, np.diagonal(np.roll(c2, 1, axis=0)))
        wide = np.pad(c2, self.smoothed // 2, mode="edge")
        windows = np.lib.stride_tricks.sliding_window_view(wide, (self.smoothed, self.smoothed))
        return windows.mean((2, 3))


def integral(rate: np.ndarray, time: np.ndarray) -> np.ndarray:
    """Return the integral since the first frame, by the trapezoid rule."""
    return np.concatenate([[0.0], np.cumsum(np.diff(time) * (rate[1:] + rate[:-1]) / 2)])


def intensities(
    rng: np.random.Generator, g1: Sequence[np.ndarray], samples: int, modes: int, neighbours: float
) -> Iterator[np.ndarray]:
    """Yield the intensity (sample, frame) in each bin, of mean 1."""
    white = np.zeros((samples * modes, len(g1[0])), np.complex64)
    for number, correlation in enumerate(g1):
        old = np.float32(neighbours if number else 0)
        new = rng.standard_normal((2, *white.shape), np.float32) * np.sqrt((1 - old**2) / 2)
        white = old * white + new[0] + 1j * new[1]
        root = np.linalg.cholesky((1 - RIDGE) * correlation + RIDGE * np.eye(len(correlation)))
        field = white @ root.T.astype(np.complex64)
        yield (np.abs(field) ** 2).reshape(samples, modes, -1).mean(1)


def two_times(
    rng: np.random.Generator,
    motion: Motion,
    detector: Detector,
    places: np.ndarray,
    time: np.ndarray,
) -> np.ndarray:
    """Return c2 (bin, frame, frame) at places (bin, 2): q and φ."""
    size, modes = detector.pixels, detector.modes
    if detector.beam:  # the same in all bins; what is drawn for it changes no other number
        (beam,), light = rng.spawn(1), 1.0 if detector.light is None else detector.light
        noise = detector.beam * beam.standard_normal(len(time))
        detector = replace(detector, light=light * np.maximum(1 + noise, 0))
    g1 = [motion.field_correlation(q, phi, time) for q, phi in places]
    if not detector.overlap:
        bins = intensities(rng, g1, size, modes, detector.neighbours)
        return np.array([detector.correlated(detector.counts(rng, light)) for light in bins])
    step = round(size * (1 - detector.overlap))
    (light,) = intensities(rng, g1[:1], step * (len(places) - 1) + size, modes, 0.0)
    counts = detector.counts(rng, light)
    return np.array([detector.correlated(counts[k * step :][:size]) for k in range(len(places))])
