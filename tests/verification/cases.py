"""Rows of the table, and how a scan of a row is made, read and fitted."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tests.verification.speckle import Detector, Motion, two_times

RING = 0.01
"""q in 1/Å: with D0 = 1e4 Å²/s, c2 decays in 10 frames of SPACING."""
SPACING = 0.1
ATTRIBUTES = {"gamma_dot_t0": "gamma_dot", "gamma_dot_t_offset": "gamma_dot_offset"}
"""Of a motion, where parameters have other names."""
COUETTE = ("D0", "gamma_dot_t0", "phi0")
DIFFUSION = ("D0", "alpha", "D_offset")
FREE = {
    "": (), "brownian": DIFFUSION[:1], "power_law": DIFFUSION[:2], "static": DIFFUSION,
    "couette": COUETTE, "poiseuille": COUETTE,
    "laminar_flow": (*DIFFUSION, "gamma_dot_t0", "beta", "gamma_dot_t_offset", "phi0"),
}  # fmt: skip
"""Fitted parameters by model."""


class Case(NamedTuple):
    """Arrays of a scan, what is true of it, and how it is read and fitted."""

    c2: np.ndarray
    q: np.ndarray
    phi: np.ndarray
    time: np.ndarray
    truth: Mapping[str, float]
    model: str
    """"": models are compared."""
    options: Mapping[str, Any]
    read_with: Mapping[str, Any]
    """Options of ingest."""
    way: str
    """fit, compare or series: which function of the library is measured."""


class Row(NamedTuple):
    """A row of the table: what is claimed, and scans that may contradict it."""

    claim: str
    """Its number in the table of issue 78; 0: right models, as anchors."""
    name: str
    truth: str
    setting: str
    expected: str
    make: Callable[[np.random.Generator], Case]
    causes: tuple[str, ...] = ()
    """Codes of findings, one of which is to be the first that names a cause."""
    frames: tuple[int, int] | None = None
    """The first and the last frame that this finding is to name, with at most two more."""


@dataclass(frozen=True)
class Setup:
    """Makes a case from a seeded generator: a scan of a motion, seen by a detector, fitted by a model."""

    motion: Motion
    model: str
    detector: Detector = field(default_factory=Detector)
    q: Sequence[float] = (RING,)
    sectors: int = 0
    """Of half a turn, at the first q; 0: full rings at all q."""
    frames: int = 100
    options: Mapping[str, Any] = field(default_factory=dict)
    read_with: Mapping[str, Any] = field(default_factory=dict)
    way: str = "fit"
    time: Callable[[np.random.Generator], np.ndarray] | None = None
    """Draws the times of frames, in place of even ones."""
    stored_evenly: bool = False
    """Whether the file says that frames are evenly spaced, whatever they are."""
    unknown: Callable[[np.ndarray], np.ndarray] | None = None
    """From times to pairs that are not measured."""

    def truth(self) -> dict[str, float]:
        """Return true values of fitted parameters; none where the motion has no such parameters."""
        names: tuple[str, ...] = () if self.motion.rate else FREE[self.model]
        known_as = {name: name for name in names} | ATTRIBUTES
        truth = {name: getattr(self.motion, known_as[name]) for name in names}
        return truth | ({"power of q": 2.0} if self.way == "series" else {})

    def __call__(self, rng: np.random.Generator) -> Case:
        q = np.full(self.sectors, self.q[0]) if self.sectors else np.array(self.q)
        phi = np.arange(len(q)) * (180.0 / len(q) if self.sectors else 0.0)
        even = SPACING * np.arange(self.frames)
        time = even if self.time is None else self.time(rng)
        c2 = two_times(rng, self.motion, self.detector, np.stack([q, phi], 1), time)
        if self.unknown is not None:
            c2[:, self.unknown(time)] = np.nan
        sheared = "gamma_dot_t0" in FREE[self.model]
        options = {**self.options, **({"gap": self.motion.gap} if sheared else {})}
        stored = even if self.stored_evenly else time
        return Case(c2, q, phi, stored, self.truth(), self.model, options, self.read_with, self.way)
