"""Numbers of a file that look as if they were in other units, or in another order, than they are read in."""

from collections.abc import Iterator

import numpy as np

from ingest.readers.source import Source

TURN = 2 * np.pi
MIN_ANGLES = 4
"""Angles from which on their range tells whether they may be radians."""
MIN_RANGE = 2.5
"""Radians that the angles of a detector cover at least, somewhat below half a turn."""
LARGEST_Q = 0.1
"""1/Å; beyond, c2 is measured at wide angles only."""
LONGEST_RECORD = 43_200.0
"""s; half a day."""


def implausible(source: Source) -> list[str]:
    """Return a note for each unit that is probably another one; the numbers stay as they are."""
    return [*_angles(source), *_wavevectors(source), *_times(source)]


def _angles(source: Source) -> Iterator[str]:
    phi = np.unique(source.phi[np.isfinite(source.phi)])
    if len(phi) >= MIN_ANGLES and np.abs(phi).max() <= TURN and np.ptp(phi) >= MIN_RANGE:
        yield (
            f"are the angles radians? {len(phi)} values of phi lie between {phi[0]:.3g} and {phi[-1]:.3g}°: "
            f"phi is read in degrees; if they are radians, ingest np.degrees(phi)"
        )


def _wavevectors(source: Source) -> Iterator[str]:
    q = source.q[np.isfinite(source.q)]
    if len(q) and q.max() > LARGEST_Q:
        yield (
            f"is q in 1/nm? It is up to {q.max():.3g} 1/Å, as at wide angles only: q is read in 1/Å; if it "
            f"is in 1/nm, ingest q / 10, else D comes out 100 times too small"
        )


def _times(source: Source) -> Iterator[str]:
    lasts = source.n_frames * source.frame_time
    if lasts > LONGEST_RECORD:
        yield (
            f"is the frame time in ms? {source.n_frames} frames of {source.frame_time:g} s last "
            f"{lasts / 3600:.3g} h: it is read in seconds; if it is in ms, ingest it divided by 1000"
        )
