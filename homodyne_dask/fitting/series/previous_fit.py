"""What an earlier run left of a fit: a result or a checkpoint, of the same fit or of one that changed."""

import json
from importlib.metadata import version
from typing import NamedTuple

from homodyne_dask.errors import OptionError, SourceError, StoreError
from homodyne_dask.fitting.minimize import identity
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.fitting.series.fit_job import Job
from homodyne_dask.machine.running_code import OUR_CODE, code_digest
from homodyne_dask.models import Model
from homodyne_dask.request.request import Request
from homodyne_dask.results.result_classes import FitResult
from homodyne_dask.solver.checkpoint import checkpoint_exists, identity_differences, saved_identity

DATA, CODE = "data", "code of the model"
"""What may have changed beside options and versions, by the names in the identity of a checkpoint."""
_WITH_DATA = ("bins", "frames", "excluded frames", "labels", "gap_angstrom")
"""What the store may have set, and other data with it."""
_FOUND_LATER = ("excluded chunks", "device")
"""Chunks that cannot be read, and whether there is a GPU, are found when the fit starts."""
_NOT_ASKED = ("model_digest", "changed", "periods")
"""What is in the configuration of a result, but follows from the rest."""


class PreviousFit(NamedTuple):
    """What an earlier run left of a fit, by default nothing."""

    result: FitResult | None = None
    """Of the same fit: it is kept."""
    resume: bool = False
    """Whether there is a checkpoint of the same fit."""
    changed: str = ""
    """What has changed since, in words: the fit is made anew."""
    error: Exception | None = None
    """Why the data or what was left cannot be read."""

    @property
    def nothing(self) -> bool:
        """Whether the whole fit is still to be made."""
        return not (self.result or self.resume or self.error)


def find_previous(model: Model, job: Job) -> PreviousFit:
    """Return what an earlier run left of a fit.

    Raises OptionError for a fit with other options, and for options that this fit cannot have.
    """
    from homodyne_dask.results.files.folder import checkpoint_in
    from homodyne_dask.results.saved_results import SUMMARY, load_result

    checkpoint, result, saved = checkpoint_in(job.folder), None, {}
    resume = checkpoint_exists(checkpoint)
    if not (resume or (job.folder / SUMMARY).exists()):
        return PreviousFit()
    try:
        scan = job.scan()
        if resume:
            saved = saved_identity(checkpoint)
        else:
            result = load_result(job.folder)
    except (StoreError, SourceError) as e:
        return PreviousFit(error=e)
    request = prepare(scan, model, **job.options)
    if result is None:
        different = [*identity_differences(saved, identity(request))]
    else:
        different = _from_result(result, request)
    changed = [key for key in different if key in (DATA, CODE) or key.startswith("version of")]
    allowed = {*changed, *_FOUND_LATER, *(_WITH_DATA if DATA in changed else ())}
    options = [key for key in different if key not in allowed]
    if options:
        first = "model" if "model" in options else options[0]
        raise OptionError(
            f"{job.folder} contains a fit with a different {first}: give --overwrite, or another --output"
        )
    if changed:
        return PreviousFit(changed=" and ".join(changed))
    return PreviousFit(result, resume)


def _from_result(result: FitResult, request: Request) -> list[str]:
    scan, inputs, config = request.scan, result.provenance.inputs, result.config
    now = json.loads(json.dumps(request.config))
    both = {key: (config.get(key), now[key]) for key in now if key not in _NOT_ASKED}
    both |= {
        "frames": (inputs.get("frames"), list(scan.frames)),
        "excluded frames": (inputs.get("frames_excluded"), [*map(list, scan.excluded_frames)]),
        "labels": (inputs.get("labels"), scan.label.tolist()),
        "scans": (inputs.get("scans", [1] * len(scan.bins)), scan.scan_number.tolist()),
        "version of homodyne-dask": (result.provenance.version, version("homodyne-dask")),
        f"version of the {OUR_CODE}": (result.provenance.versions.get(OUR_CODE), code_digest()),
        DATA: (inputs.get("store_sha256"), scan.digest),
        CODE: (config.get("model_digest"), now["model_digest"]),
    }
    return [key for key, (then, current) in both.items() if (then or None) != (current or None)]
