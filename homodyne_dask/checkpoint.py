"""Where a fit stands, on disk and back: plain data with a digest, whole or not at all.

The current file and the one before it (`.previous`) are kept, so a damaged one costs one pass.
"""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from homodyne_dask.errors import OptionError
from homodyne_dask.files import write_whole
from homodyne_dask.gram import Gram

VERSION = 1


class Point(NamedTuple):
    """A state of the solver, with the Gram it was made from."""

    theta: list[float]
    damping: float
    accepted: bool
    gram: Gram
    counts: tuple[int, int] = (0, 0)
    """Uphill steps that led here, and trials given up since the fit began."""


class Checkpoint(NamedTuple):
    """What is needed to go on as if nothing had happened."""

    identity: dict[str, Any]
    """Data, model and options; a fit resumes only from a checkpoint with the same."""
    passes: int
    point: Point
    fallback: Point | None
    history: list[dict[str, Any]]


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Write the checkpoint; the last one becomes `.previous`."""
    written = {
        "format": "homodyne_dask checkpoint",
        "version": VERSION,
        **checkpoint._asdict(),
        "point": _packed_point(checkpoint.point),
        "fallback": None if checkpoint.fallback is None else _packed_point(checkpoint.fallback),
    }
    body = json.dumps(written, allow_nan=False)
    digest = hashlib.sha256(body.encode()).hexdigest()
    if path.exists():
        path.replace(previous(path))
    write_whole(path, f"{digest}\n{body}\n")


def load(path: Path, identity: dict[str, Any]) -> Checkpoint:
    """Return the newest whole checkpoint; raises OptionError if there is none or it is another fit's."""
    bodies = [body for body in map(_body, (path, previous(path))) if body is not None]
    if not bodies:
        raise OptionError(f"no checkpoint to resume from at {path}: run without --resume first")
    read = bodies[0]
    if read.get("version") != VERSION:
        raise OptionError(
            f"{path} has checkpoint version {read.get('version')}, this program reads {VERSION}: "
            f"fit again without --resume"
        )
    # through JSON and back, so that tuples and lists compare equal
    wanted = json.loads(json.dumps(identity))
    for key in sorted(set(wanted) | set(read["identity"])):
        then, now = read["identity"].get(key), wanted.get(key)
        if then != now:
            raise OptionError(
                f"{path} is of another fit: {key} was {then}, now {now}; "
                f"give the same options, or fit again without --resume"
            )
    return Checkpoint(
        identity=read["identity"],
        passes=read["passes"],
        point=_point(read["point"]),
        fallback=None if read["fallback"] is None else _point(read["fallback"]),
        history=read["history"],
    )


def previous(path: Path) -> Path:
    """Return where the checkpoint before the current one is kept."""
    return path.with_name(path.name + ".previous")


def _body(path: Path) -> dict[str, Any] | None:
    """Return what a file holds if its digest is right."""
    try:
        digest, body = path.read_text().split("\n")[:2]
    except (OSError, ValueError):
        return None
    if hashlib.sha256(body.encode()).hexdigest() != digest:
        return None
    return json.loads(body)


def _packed_point(point: Point) -> dict[str, Any]:
    moments = {"shape": point.gram.moments.shape, "moments": _packed(point.gram.moments)}
    return point._asdict() | {"gram": moments | {"count": _packed(point.gram.pairs)}}


def _point(read: dict[str, Any]) -> Point:
    packed = read["gram"]
    moments = _unpacked(packed["moments"], "<f8").reshape(packed["shape"])
    gram = Gram(moments, _unpacked(packed["count"], "<i8"))
    uphill, rejections = read["counts"]
    return Point(read["theta"], read["damping"], read["accepted"], gram, (uphill, rejections))


def _packed(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()


def _unpacked(text: str, kind: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), kind).copy()
