"""Checkpoints: the state of a fit on disk, as plain data with a digest.

The current file and the one before it (`.previous`) are kept, so a damaged one costs one pass.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter

from homodyne_dask.errors import OptionError, shown
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.models.parameters import Search
from homodyne_dask.solver.levenberg_marquardt import Damping, State, StepControl, TrustRegion
from homodyne_dask.solver.penalty_strength import penalized
from homodyne_dask.solver.reduce import Strengths, reduce
from homodyne_dask.solver.scaling_modes import Scaling
from homodyne_dask.store.files import partial_files, read_regular_file, replacing

VERSION = 5
FORMAT = "homodyne_dask checkpoint"
MAX_BYTES = 4_000_000_000
"""Of the largest checkpoint that is read."""


Number = Annotated[float, Field(ge=-1e100, le=1e100)]
"""One whose square is a number, too."""


class SavedState(NamedTuple):
    theta: list[Number]
    damping: Number
    accepted: bool
    gram: Gram
    nonmonotone_steps: int = 0
    rejected_steps: int = 0
    slow_steps: int = 0
    linear_params: list[list[Number]] | None = None
    trust_region: tuple[list[Number], Number] | None = None
    strengths: list[list[Number]] | None = None
    secant: list[list[Number]] | None = None


class Checkpoint(NamedTuple):
    identity: dict[str, object]
    """Data, model and options; a fit resumes only from a checkpoint with the same."""
    passes: int
    state: SavedState
    best: SavedState | None
    history: list[dict[str, Any]]
    minima: Sequence[dict[str, Any]] = ()


_ANY = ConfigDict(arbitrary_types_allowed=True)
_SAVED, _CHECKPOINT = TypeAdapter(SavedState, config=_ANY), TypeAdapter(Checkpoint, config=_ANY)


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Write the checkpoint; the last one becomes `.previous`, unless damaged: at any moment one is intact."""
    written = {
        "format": FORMAT,
        "version": VERSION,
        **checkpoint._asdict(),
        "state": _packed_state(checkpoint.state),
        "best": None if checkpoint.best is None else _packed_state(checkpoint.best),
    }
    body = json.dumps(written, allow_nan=False)
    digest = hashlib.sha256(body.encode()).hexdigest()
    with replacing(path) as partial:
        partial.write_text(f"{digest}\n{body}\n")
        if _intact(path) is not None:
            path.replace(previous(path))


def load(path: Path, identity: dict[str, object]) -> Checkpoint:
    """Return the newest intact checkpoint; raises OptionError if there is none or it is another fit's."""
    read = _newest(path)
    if read.get("version") != VERSION:
        raise OptionError(
            f"{path} has checkpoint version {read.get('version')}, but this program reads {VERSION}: "
            f"fit again without --resume"
        )
    with foreign_content(path):
        for key, (old, new) in identity_differences(read["identity"], identity).items():
            raise OptionError(
                f"{path} belongs to another fit: {key} was {_quoted(old)}, now {_quoted(new)}; "
                f"give the same options, or fit again without --resume"
            )
        states = {name: read[name] and _state(read[name]) for name in ("state", "best")}
        fields = {name: read[name] for name in Checkpoint._fields}
        return _CHECKPOINT.validate_python(fields | states)


def saved_state(state: State) -> SavedState:
    reduced, S, penalty = state.reduced, state.second_order_term, state.reduced.penalty
    control, region = state.control, None
    if isinstance(control, TrustRegion):
        region = control.size.tolist(), control.radius
    return SavedState(
        state.theta.tolist(), state.damping, state.accepted, reduced.gram,
        state.nonmonotone_steps, state.rejected_steps, state.slow_steps,
        None if reduced.linear_step is None else reduced.linear_params.tolist(),
        region,
        penalty and [array.tolist() for array in penalty.strengths],
        None if S is None else S.tolist(),
    )  # fmt: skip


def restored_state(
    saved: SavedState,
    search: Search,
    scaling: Scaling,
    sum_rounding: float,
    passes: int,
    best: State | None = None,
) -> State:
    """Return the state that was saved, without its decrement and outcome; best: another lowest state."""
    theta, S = np.array(saved.theta), saved.secant
    linear_params = None if saved.linear_params is None else np.array(saved.linear_params)
    prior = search.prior_terms(theta)
    reduced = reduce(saved.gram, scaling, sum_rounding, prior, linear_params)
    if saved.strengths is not None:
        strengths = Strengths(*map(np.array, saved.strengths))
        reduced = penalized(search, theta, reduced, strengths)
    control: StepControl = Damping(saved.damping)
    if saved.trust_region is not None:
        size, radius = saved.trust_region
        control = TrustRegion(np.array(size), radius, saved.damping)
    return State(
        theta, reduced, control, passes=passes,
        accepted=saved.accepted, best=best, nonmonotone_steps=saved.nonmonotone_steps,
        rejected_steps=saved.rejected_steps, slow_steps=saved.slow_steps,
        second_order_term=None if S is None else np.array(S),
    )  # fmt: skip


@contextmanager
def foreign_content(path: Path) -> Iterator[None]:
    """Turn errors from the content of an intact checkpoint into an OptionError that names its file."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as e:
        raise OptionError(
            f"{path} is intact, but is not a checkpoint of this program ({type(e).__name__}: {e}): "
            f"fit again without --resume"
        ) from e


def check_checkpoint_target(path: Path) -> None:
    """Raise OptionError for a file that exists and is neither a checkpoint nor a damaged one."""
    foreign = path.exists() and _body(path) is None and not previous(path).exists()
    if foreign and path.stat().st_size > 0:
        raise OptionError(f"{path} exists but is not a checkpoint: remove it, or give another name")


def _newest(path: Path) -> dict[str, Any]:
    files = (path, previous(path))
    for body in map(_body, files):
        if body is not None:
            return body
    damaged = [str(file) for file in files if file.exists()]
    if damaged:
        raise OptionError(
            f"no intact checkpoint to resume from: {' and '.join(damaged)} "
            f"{'are' if len(damaged) > 1 else 'is'} damaged or cannot be read; fit again without --resume"
        )
    raise OptionError(f"no checkpoint to resume from at {path}: run without --resume first")


def saved_identity(path: Path) -> dict[str, object]:
    bodies = filter(None, map(_body, (path, previous(path))))
    identity = next(bodies, {}).get("identity")
    return identity if isinstance(identity, dict) else {}


def identity_differences(
    before: dict[str, object], identity: dict[str, object]
) -> dict[str, tuple[object, object]]:
    """Return what differs between the identities of two fits, with the values of both, by name."""
    # through JSON and back, so that tuples and lists compare equal
    after = json.loads(json.dumps(identity))
    pairs = {key: (before.get(key), after.get(key)) for key in sorted(set(after) | set(before))}
    return {key: (old, new) for key, (old, new) in pairs.items() if old != new}


def _quoted(value: object) -> str:
    if value is None:
        return "not given"
    return value if isinstance(value, str) else shown(value)


def previous(path: Path) -> Path:
    return path.with_name(path.name + ".previous")


def checkpoint_exists(path: Path) -> bool:
    return path.exists() or previous(path).exists()


def checkpoint_files(path: Path) -> list[Path]:
    return [path, previous(path), *partial_files(path)]


def _body(path: Path) -> dict[str, Any] | None:
    text = _intact(path)
    try:
        body = None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) and body.get("format") == FORMAT else None


def _intact(path: Path) -> bytes | None:
    try:
        digest, body = read_regular_file(path, MAX_BYTES).split(b"\n")[:2]
    except (OSError, ValueError):
        return None
    return body if hashlib.sha256(body).hexdigest().encode() == digest else None


def _packed_state(state: SavedState) -> dict[str, Any]:
    gram = state.gram
    packed = {"shape": gram.moments.shape, "moments": _packed(gram.moments)}
    packed |= {"loss": _packed(gram.loss)} if gram.loss is not None else {}
    return state._asdict() | {"gram": packed | {"count": _packed(gram.pairs)}}


def _state(read: dict[str, Any]) -> SavedState:
    packed = read["gram"]
    moments = _unpacked(packed["moments"], "<f8").reshape(packed["shape"])
    pairs = _unpacked(packed["count"], "<i8")
    if len(moments) != len(pairs):
        raise ValueError(f"moments of {len(moments)} bins for {len(pairs)}")
    loss = _unpacked(packed["loss"], "<f8").reshape(-1, 4) if "loss" in packed else None
    return _SAVED.validate_python(read | {"gram": Gram(moments, pairs, loss)})


def _packed(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()


def _unpacked(text: str, dtype: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype).copy()
