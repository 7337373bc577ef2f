"""Rows of the table, and how a scan of a row is made, read and fitted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tests.verification.speckle import Detector, Motion, two_times

RING = 0.01
"""q in 1/Å: with D0 = 1e4 Å²/s, c2 decays in 10 frames of SPACING."""
SPACING = 0.1
FREE = {
    "": "", "brownian": "D0", "power_law": "D0 alpha", "static": "D0 alpha D_offset",
    "couette": "D0 gamma_dot_t0 phi0", "poiseuille": "D0 gamma_dot_t0 phi0",
    "laminar_flow": "D0 alpha D_offset gamma_dot_t0 beta gamma_dot_t_offset phi0",
}  # fmt: skip
"""Fitted parameters by model."""
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""c2, q, φ and times, as a file has them."""


@dataclass(frozen=True)
class Setup:
    """A motion, the detector that sees it, and how its scans are read and fitted."""

    motion: Motion
    model: Any
    """A name, or a user's model; "": models are compared."""
    detector: Detector = field(default_factory=Detector)
    q: Sequence[float] = (RING,)
    sectors: int = 0
    """Of half a turn, at the first q; 0: full rings at all q."""
    frames: int = 100
    options: Mapping[str, Any] = field(default_factory=dict)
    read_with: Mapping[str, Any] = field(default_factory=dict)
    """Options of ingest."""
    way: str = "fit"
    """fit, compare, series, rings, scans or posterior: which function of the library is measured."""
    others: Sequence["Setup"] = ()
    """Further scans that are fitted together with it."""
    true: Mapping[str, float] | None = None
    """Of the parameters that are measured, where they are not those of FREE and of the motion."""
    time: np.ndarray | None = None
    """Of frames that are not evenly spaced."""
    jitter: float = 0.0
    """Standard deviation of times, over the spacing of frames."""
    stored_evenly: bool = False
    """Whether the file says that frames are evenly spaced, whatever they are."""
    unknown: np.ndarray | None = None
    """Pairs of frames that are not measured."""

    def truth(self) -> dict[str, float]:
        """Return true values of fitted parameters; none where the motion has no such parameters."""
        if self.true is not None:
            return dict(self.true)
        names = "" if self.motion.rate else FREE[self.model]
        truth = {name: getattr(self.motion, name) for name in names.split()}
        return truth | ({"power of q": 2.0} if self.way == "series" else {})

    def scan(self, rng: np.random.Generator) -> Arrays:
        q = np.full(self.sectors, self.q[0]) if self.sectors else np.array(self.q)
        phi = np.arange(len(q)) * (180.0 / len(q) if self.sectors else 0.0)
        even = SPACING * np.arange(self.frames)
        time = even if self.time is None else self.time
        if self.jitter:
            time = time + SPACING * self.jitter * rng.standard_normal(self.frames)
            time -= time[0]
        c2 = two_times(rng, self.motion, self.detector, np.stack([q, phi], 1), time)
        if self.unknown is not None:
            c2[:, self.unknown] = np.nan
        return c2, q, phi, even if self.stored_evenly else time


class Row(NamedTuple):
    """A row of the table: what is claimed, and scans that may contradict it."""

    claim: str
    """Its number in docs/evidence/verification.md; 0: right models, as anchors."""
    name: str
    truth: str
    setting: str
    expected: str
    setup: Setup
    causes: tuple[str, ...] = ()
    """Codes of findings, one of which is to be the first that names a cause."""
    frames: tuple[int, int] | None = None
    """The first and the last frame that this finding is to name, with at most two more."""
