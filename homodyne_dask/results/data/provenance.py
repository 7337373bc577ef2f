"""Where a fit comes from: its options, its data, the programs, and the model that was fitted."""

from dataclasses import dataclass, field
from typing import Any

from homodyne_dask.errors import OptionError
from homodyne_dask.models import Model, model_of_digest
from homodyne_dask.models.fingerprint import known_part
from homodyne_dask.models.spline_rates import with_stored_splines
from homodyne_dask.models.tied import with_ties


@dataclass(frozen=True)
class Provenance:
    """What was fitted, how, and with which programs."""

    config: dict[str, Any]
    """The options in force, defaults included: model, convention, gap_angstrom, scaling, ..."""
    inputs: dict[str, Any]
    """The store, its digest, the source file and its SHA-256, the selection, notes of ingest."""
    truth: dict[str, Any] | None = None
    """True model and parameters of simulated data."""
    version: str = ""
    """Of homodyne-dask."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of Python and of the numerical packages."""
    definition: Model | None = field(default=None, repr=False, compare=False)
    """The model that was fitted; None for a result that was read from a file."""

    def fitted_model(self) -> Model:
        """Return the model that was fitted.

        Raises OptionError where this process does not have it, or where its functions read other values.
        """
        name, held = self.config["model"], self.definition
        if held is not None:
            if known_part(held.current().digest) == known_part(held.digest):
                return held
            raise OptionError(
                f"data that the functions of model {name!r} read have changed since the fit: restore them, "
                f"or fit again"
            )
        if splines := self.config["splines"]:
            return with_stored_splines(name, splines)
        model = model_of_digest(name, self.config["model_digest"])
        if model is None:
            raise OptionError(
                f"the fitted model {name!r} is unknown in this process, so only the numbers of the result "
                f"can be shown: define the model with hd.separable as before, or fit again"
            )
        return with_ties(model, self.config["tie"])
