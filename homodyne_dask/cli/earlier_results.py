"""What an earlier run left in the folder of a fit: a result, a checkpoint, or either of changed data."""

import json
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

from homodyne_dask.errors import OptionError, SourceError, StoreError

if TYPE_CHECKING:
    from homodyne_dask.cli.several_fits import FitJob
    from homodyne_dask.fitting.request import Request
    from homodyne_dask.models import Model
    from homodyne_dask.results.data.fit_result import FitResult

DATA, CODE, VERSION = "data", "code of the model", "version of homodyne-dask"
"""What may have changed beside the options, by the names in the identity of a checkpoint."""
_WITH_DATA = ("bins", "frames", "labels", "gap_angstrom")
"""What the store may have set, and other data with it."""
_FOUND_LATER = ("excluded chunks", "device")
"""Chunks that cannot be read, and whether there is a GPU, are found when the fit starts."""


class Earlier(NamedTuple):
    """What an earlier run left of a fit, by default nothing."""

    result: "FitResult | None" = None
    """Of the same fit: it is kept."""
    resume: bool = False
    """Whether there is a checkpoint of the same fit."""
    changed: str = ""
    """What has changed since, in words: the fit is made anew."""
    error: Exception | None = None
    """Why the data or what was left cannot be read."""


def earlier(model: "Model", job: "FitJob") -> Earlier:
    """Return what an earlier run left of a fit.

    Raises OptionError for a fit with other options, and for options that this fit cannot have.
    """
    from homodyne_dask.fitting.request import prepare
    from homodyne_dask.results.files.folder import checkpoint_in
    from homodyne_dask.results.files.saved_results import SUMMARY, load_result
    from homodyne_dask.solver.checkpoint import checkpoint_exists, saved_identity

    checkpoint, result = checkpoint_in(job.folder), None
    resume = checkpoint_exists(checkpoint)
    if not (resume or (job.folder / SUMMARY).exists()):
        return Earlier()
    try:
        scan = job.scan()
        result = None if resume else load_result(job.folder)
        saved = saved_identity(checkpoint) if resume else {}
    except (StoreError, SourceError) as e:
        return Earlier(error=e)
    request = prepare(scan, model, **job.options)
    different = (
        _from_checkpoint(saved, request) if result is None else _from_result(result, request)
    )
    changed = [key for key in different if key in (DATA, CODE) or key.startswith("version of")]
    options = [key for key in different if key not in changed]
    if DATA in changed:
        options = [key for key in options if key not in _WITH_DATA]
    if options:
        first = "model" if "model" in options else options[0]
        raise OptionError(
            f"{job.folder} holds a fit with another {first}: give --overwrite, or another --output"
        )
    if changed:
        return Earlier(changed=" and ".join(changed))
    return Earlier(result, resume)


def _from_checkpoint(saved: dict[str, Any], request: "Request") -> list[str]:
    """Return the names of what differs between a checkpoint and a fit."""
    from homodyne_dask.fitting.minimize import identity
    from homodyne_dask.solver.checkpoint import identity_differences

    return [
        key for key in identity_differences(saved, identity(request)) if key not in _FOUND_LATER
    ]


def _from_result(result: "FitResult", request: "Request") -> list[str]:
    """Return the names of what differs between a result and a fit."""
    scan, before = request.scan, result.config | {"frames": result.provenance.inputs.get("frames")}
    now = json.loads(json.dumps(request.config)) | {"frames": list(scan.frames)}
    now |= {"labels": scan.label.tolist(), VERSION: version("homodyne-dask")}
    before |= {"labels": result.provenance.inputs.get("labels"), VERSION: result.provenance.version}
    now |= {DATA: scan.digest, CODE: now.pop("model_digest")}
    before |= {DATA: result.provenance.inputs.get("store_sha256"), CODE: before.get("model_digest")}
    for follows_from_others in ("changed", "periods"):
        del now[follows_from_others]
    before.setdefault("device", "auto")  # of earlier programs: there was no choice
    # nothing given was {} in results of earlier programs, and is None
    return [key for key, value in now.items() if (before.get(key) or None) != (value or None)]
