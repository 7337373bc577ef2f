"""Rings: bins of the same q, and pairs of bins that see the same speckle."""

import numpy as np
from jaxtyping import Bool, Float, Int

from homodyne_dask.errors import SelectionError

SAME_RING_TOLERANCE = 1e-3
"""Relative distance of neighbouring q below which two bins are on one ring."""
NEAREST_Q_TOLERANCE = 0.02
"""Largest relative distance of a requested q from the nearest ring."""
NEAREST_ANGLE_TOLERANCE = 1.0
"""Largest distance of a requested φ from the nearest angle of a ring, in degrees."""
SAME_ANGLE_TOLERANCE = 1e-3
"""Degrees below which two bins of a ring are at one angle."""


def ring_numbers(q: Float[np.ndarray, " bin"]) -> Int[np.ndarray, " bin"]:
    """Return the number of each bin's ring, from the smallest q up; bins of unknown q form one ring."""
    values = np.nan_to_num(q, nan=-1.0)
    order = np.argsort(values)
    step = np.diff(values[order], prepend=-np.inf) > SAME_RING_TOLERANCE * np.abs(values[order])
    numbers = np.empty(len(q), int)
    numbers[order] = np.cumsum(step) - 1
    return numbers


def friedel_clusters(
    q: Float[np.ndarray, " bin"],
    phi: Float[np.ndarray, " bin"],
    scans: Int[np.ndarray, " bin"] | None = None,
) -> Int[np.ndarray, " bin"]:
    """Return a cluster number per bin: bins of equal q whose φ differ by 180° see the same speckle.

    Those of different scans, of these numbers, do not. The tolerance of φ is half the spacing of neighbouring
    angles of a ring, at most 5°.
    """
    clusters = np.arange(len(q))
    rings = ring_numbers(q)
    if scans is not None:
        rings += (rings.max(initial=0) + 1) * scans
    for ring in _members(rings):
        members = ring[np.isfinite(phi[ring])]
        if len(members) < 2:
            continue
        gaps = np.diff(np.sort(np.mod(phi[members], 360)))
        # two bins at one angle are no neighbouring angles
        width = min(5.0, 0.5 * gaps[gaps > 1e-9].min(initial=10.0))
        for n in _with_opposite(phi[members], width).tolist():
            a, after = members[n], members[n + 1 :]
            clusters[after[np.abs((phi[a] - phi[after]) % 360 - 180) < width]] = clusters[a]
    return clusters


def _with_opposite(phi: Float[np.ndarray, " bin"], width: float) -> Int[np.ndarray, " some"]:
    """Return the places of angles with another one nearer than about a width to 180° from them."""
    angle = np.mod(phi, 360)
    turns = np.sort(np.concatenate([angle - 360, angle, angle + 360]))
    low, high = (angle + 180 + (1 + 1e-9) * side for side in (-width, width))
    return np.flatnonzero(np.searchsorted(turns, high, "right") > np.searchsorted(turns, low))


def rings_of(q: Float[np.ndarray, " bin"]) -> Float[np.ndarray, " ring"]:
    """Return the q [1/Å] of every ring of known q in ascending order: the median over its bins."""
    q = q[np.isfinite(q)]
    return np.array([np.median(q[ring]) for ring in _members(ring_numbers(q))])


def _members(numbers: Int[np.ndarray, " bin"]) -> list[Int[np.ndarray, " member"]]:
    """Return the places of each number, in ascending order of the numbers."""
    order = np.argsort(numbers, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1) if len(order) else []


def nearest_ring(q: Float[np.ndarray, " bin"], target: float) -> Int[np.ndarray, " member"]:
    """Return the positions of the bins of the ring nearest to `target` [1/Å], which is told from others."""
    rings = rings_of(q)
    if not len(rings):
        raise SelectionError(f"q = {target} cannot be selected: the store has no q")
    away = np.abs(rings - target)
    ring, *others = np.argsort(away, kind="stable")
    if not away[ring] <= NEAREST_Q_TOLERANCE * rings[ring]:
        raise SelectionError(
            f"no ring within 2 % of q = {target:g} 1/Å; choose from {format_rings(rings)}, which "
            f"{'is' if len(rings) == 1 else 'are'} {format_rings(10 * rings, unit='1/nm')}"
        )
    if others and away[others[0]] < 2 * away[ring]:
        between = format_rings(np.sort(rings[[ring, others[0]]]), " and ")
        raise SelectionError(
            f"q = {target:g} 1/Å matches the rings {between}: give more digits; "
            f"choose from {format_rings(rings)}"
        )
    with_q = np.flatnonzero(np.isfinite(q))
    return with_q[ring_numbers(q[with_q]) == ring]


def nearest_angles(
    q: Float[np.ndarray, " bin"], phi: Float[np.ndarray, " bin"], target: float
) -> Bool[np.ndarray, " bin"]:
    """Return which bins are, on each ring, at the angle nearest to `target` [degree] within 1°."""
    keep, rings, away = np.zeros(len(q), bool), ring_numbers(q), np.abs(_turned(phi - target))
    for ring in np.unique(rings[away <= NEAREST_ANGLE_TOLERANCE]):
        near = np.flatnonzero((rings == ring) & (away <= NEAREST_ANGLE_TOLERANCE))
        near = near[np.argsort(away[near], kind="stable")]
        nearest = near[0]
        coincide = np.abs(_turned(phi[near] - phi[nearest])) <= SAME_ANGLE_TOLERANCE
        # one nearly as far away may be meant as well
        for other in near[~coincide][:1]:
            if away[other] < 2 * away[nearest]:
                raise SelectionError(
                    f"phi = {target:g}° matches the angles {phi[nearest]:g} and {phi[other]:g}°: give more "
                    f"digits, or a range"
                )
        keep[near[coincide]] = True
    if not keep.any():
        finite = np.flatnonzero(np.isfinite(phi))
        nearest = np.unique(phi[finite[np.argsort(away[finite], kind="stable")[:3]]])
        raise SelectionError(
            f"no angle within {NEAREST_ANGLE_TOLERANCE:g}° of phi = {target:g}°; the nearest: "
            f"{', '.join(f'{value:g}°' for value in nearest) or 'none is known'}; to select a range, give "
            f"(low, high), such as --phi -30:30"
        )
    return keep


def _turned(angle: Float[np.ndarray, " bin"]) -> Float[np.ndarray, " bin"]:
    return (angle + 180) % 360 - 180


def format_rings(rings: Float[np.ndarray, " ring"], between: str = ", ", unit: str = "1/Å") -> str:
    return between.join(f"{value:.6g}" for value in rings) + f" {unit}"


def describe_rings(q: Float[np.ndarray, " bin"]) -> str:
    """Return '3 rings, q 0.004 to 0.008 1/Å', or '' for fewer than two."""
    rings = rings_of(q)
    several = len(rings) > 1
    return f"{len(rings)} rings, q {rings[0]:.6g} to {rings[-1]:.6g} 1/Å" if several else ""
