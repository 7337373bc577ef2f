"""Scans of counted photons of Gaussian speckle from a field correlation: any counts, modes and pixels."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import scipy.stats

import homodyne_dask as hd
from homodyne_dask.assessment.speckle_covariance import Blocks, FrameStretch
from tests import reference
from tests.photons import counted
from tests.synthetic import Scans


@dataclass(frozen=True)
class Photons:
    """What is counted: motion, bins and detector."""

    theta: np.ndarray
    """D0, alpha, D_offset, and with shear the four others."""
    frames: int = 100
    q: tuple[float, ...] = (0.01,)
    phi: tuple[float, ...] | None = None
    mean: float = 2.0
    """Counts per pixel and frame."""
    pixels: int = 400
    modes: int = 4
    """Of a pixel: the contrast is 1/modes."""
    shared: float = 0.0
    """Part of the speckle of a pixel that its neighbour sees, too."""
    spacing: float = 0.1
    longer: float = 1.0
    """Each step from frame to frame is longer by this factor than the one before."""
    gap: float = 2e6
    stretching: float = 1.0
    """Exponent of the decay."""
    q_power: float = 2.0
    """Of q, with which rates scale."""
    hotter: float = 0.0
    """By this share the rate of the third bin is larger."""
    drift: float = 0.0
    """Change of the contrast over the record, relative."""
    flash: float = 0.0
    """c2 of all pairs with the middle frame is higher by this."""
    lost: float = 0.0
    """Part of f that is lost at once in the middle of the record."""
    vibration: float = 0.0
    """Part of the field that vibrates, once in 8 frames."""
    frozen: float | tuple[float, ...] = 0.0
    """Part of the field that does not move, of all bins or of each."""
    fading: float = 0.0
    """Part of the beam that is lost over the record, by which counts are not divided."""
    own_average: bool = False
    """Whether each pixel is divided by its own mean over time, too."""
    beam: float = 0.0
    """Standard deviation of the beam's intensity from frame to frame, relative."""
    dead: tuple[int, ...] = ()
    """Frames that are lost."""
    J: Callable[[np.ndarray], np.ndarray] | None = None
    """In place of the power law: J at the frames, from their times over that of the last."""
    shear: Callable[[np.ndarray], np.ndarray] | None = None
    """Likewise the shear rate, of seven parameters."""

    @property
    def time(self):
        steps = self.spacing * self.longer ** np.arange(self.frames - 1)
        return np.concatenate([[0.0], np.cumsum(steps)])

    @property
    def angles(self):
        return np.zeros(len(self.q)) if self.phi is None else np.array(self.phi)

    def g(self, bin):
        theta, t = np.asarray(self.theta, float), self.time
        at = np.maximum(t, self.spacing / 2)
        J = theta[0] * at ** theta[1] + theta[2] if self.J is None else self.J(t / t[-1])
        C = reference.integral(np.maximum(J, 1e-10), t)
        scale = (self.q[bin] / 0.01) ** self.q_power * 1e-4 * (1 + self.hotter * (bin == 2))
        g = np.exp(-0.5 * (scale * np.abs(C[:, None] - C)) ** self.stretching)
        g *= 1 - self.vibration * np.sin(np.pi / 8 * (t[:, None] - t) / self.spacing) ** 2
        later = t > t[-1] / 2
        g *= np.where(later[:, None] == later, 1.0, np.sqrt(1 - self.lost))
        frozen = np.broadcast_to(self.frozen, len(self.q))[bin]
        if len(theta) == 3:
            return frozen + (1 - frozen) * g
        G = reference.integral(self.rate, t)
        wave = 0.5 * self.q[bin] * self.gap * np.cos(np.deg2rad(theta[6] - self.angles[bin]))
        return frozen + (1 - frozen) * g * np.sinc(wave * (G[:, None] - G) / np.pi)

    @property
    def rate(self):
        if self.shear is not None:
            return self.shear(self.time / self.time[-1])
        return (
            self.theta[3] * np.maximum(self.time, self.spacing / 2) ** self.theta[4] + self.theta[5]
        )

    def counts(self, rng, bin, pixels=None):
        """(pixel, frame): counts of independent pixels, but for what neighbours share."""
        g, pixels = self.g(bin), pixels or self.pixels
        # unique, well conditioned and in double precision: every machine counts the same photons
        root = np.linalg.cholesky(g + 1e-6 * np.eye(len(g))).T
        intensity = np.zeros((pixels, self.frames))
        for _ in range(2 * self.modes):
            z = rng.standard_normal(intensity.shape, np.float32)
            if self.shared:
                own, other = np.sqrt(np.float32([1 - self.shared, self.shared]))
                z = own * z + other * np.roll(z, 1, axis=0)
            intensity += (z @ root) ** 2
        beam = self.beam * rng.standard_normal(self.frames) if self.beam else 0.0
        beam = beam - self.fading * np.linspace(0, 1, self.frames)
        return rng.poisson((1 + beam) * self.mean * intensity / (2 * self.modes)).astype(np.float32)

    def scan(self, seed) -> Scans:
        rng = np.random.default_rng(seed)
        c2 = []
        for bin in range(len(self.q)):
            counts = self.counts(rng, bin)
            if self.own_average:
                counts /= np.maximum(counts.mean(axis=1, keepdims=True), 1e-9)
            mean = np.full(self.frames, counts.mean()) if self.fading else counts.mean(axis=0)
            c2.append(counts.T @ counts / np.outer(mean, mean) / self.pixels)
        c2, part = np.array(c2), np.linspace(-0.5, 0.5, self.frames)
        c2 = 1 + (c2 - 1) * (1 + self.drift * (part[:, None] + part) / 2)
        c2[:, self.frames // 2] += self.flash
        c2[:, :, self.frames // 2] += self.flash
        c2[:, self.dead, :] = c2[:, :, self.dead] = np.nan
        return counted(
            c2, np.asarray(self.theta, float), self.time, np.array(self.q), self.angles,
            mean=self.mean, modes=self.modes, pixels=self.pixels,
        )  # fmt: skip


def intervals_hold_the_truth(pulls, dof, held) -> None:
    """Of a fit in each row, as often as held says: the least and the most per cent for each share."""
    known = np.isfinite(pulls)
    for share, (low, high) in held.items():
        wide = scipy.stats.t.ppf(0.5 + share / 2, dof)
        found = 100 * (np.where(known, np.abs(pulls) < wide, 0).sum(0) / known.sum(0))
        print(f"{share:.2f}: {np.round(found, 1)}")
        assert ((found >= low) & (found <= high)).all(), (share, found)


def seen_twice(scans: Scans) -> Scans:
    """The same scan with each bin once more, 180° apart: both see one speckle pattern."""
    names = ("q", "phi", "contrast", "offset", "sigma_row", "c2")
    twice = {name: np.concatenate([getattr(scans, name)] * 2) for name in names}
    twice["phi"][len(scans.phi) :] += 180
    return replace(scans, **twice)


def pixel_sums(counts, mean, f, contrast, fields):
    """(pixel, field): the sums of fields times ψ over all pairs, one pixel at a time, from its counts."""
    x = counts / mean - 1
    sums = []
    for field in fields:
        upper = np.triu(field, 1)
        both = upper + upper.T
        linear = contrast * (both * f).sum(1)
        sums.append(0.5 * ((x @ both) * x).sum(1) - x @ linear)
    return np.stack(sums, axis=1)


STILL = np.array([1e4, 0.0, 0.0])
FLOW = np.array([3e4, -0.3, 1000, 3e-4, 0.2, 2e-5, 5.0])
RING = Photons(STILL)
STATIC = {"model": hd.STATIC, "fixed": {"D_offset": 0.0}}
SHEAR = {
    "model": hd.LAMINAR_FLOW, "gap": 2e6,
    "fixed": {"D_offset": 1000.0, "gamma_dot_t_offset": 2e-5},
}  # fmt: skip


def whole_record(g: np.ndarray, contrast: float, frames_per_block: int = 1) -> Blocks:
    """The blocks of a record that stands for itself, at their numbers in place of times."""
    n = len(g)
    stretch, used = FrameStretch(np.arange(n + 1), (0, n), (0, n)), np.full(n, frames_per_block)
    return Blocks(stretch, g, 0.0, contrast, used, np.arange(n), np.ones(n), np.zeros((0, n, n)))
