"""The result of a least-squares fit of any function to any dataset."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray
from jaxtyping import Float

from homodyne_dask.fitting.curve_fit import residual_fit
from homodyne_dask.results.data import number_format as numbers
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.store.files import path_of, write_atomic
from homodyne_dask.text import abridged, aligned_columns, html_table


@dataclass(frozen=True)
class CurveFit:
    """The result of `curve_fit`, or of `fit` with a `ResidualModel`: popt, pcov = result."""

    names: tuple[str, ...]
    popt: Float[np.ndarray, " p"]
    pcov: Float[np.ndarray, "p p"] | None
    """NaN in rows of parameters that are fixed or at a bound; None where the data do not determine every
    parameter, or there are not more points than parameters."""
    outcome: lm.Outcome
    """How the fit ended: `Outcome.CONVERGED`, or another."""
    chisqr: float
    redchi: float
    """χ² divided by the degrees of freedom."""
    ndata: int
    """Number of points used: those at which every variable is known."""
    passes: int
    undetermined: tuple[str, ...]
    """Sentences on what the data do not determine."""
    model: str
    units: tuple[str, ...]
    history: tuple[dict[str, Any], ...]
    timings: dict[str, float]
    compilations: dict[str, int]

    def __iter__(self) -> Iterator[np.ndarray | None]:
        """Yield popt and pcov, as scipy returns them."""
        return iter((self.popt, self.pcov))

    @property
    def converged(self) -> bool:
        """Whether the fit ended at its optimum with every parameter determined."""
        return self.outcome is lm.Outcome.CONVERGED

    @property
    def stderr(self) -> Float[np.ndarray, " p"]:
        """The square roots of the diagonal of pcov; NaN where unknown."""
        return residual_fit.stderr(self.pcov, len(self.names))

    def to_dataset(self) -> xarray.Dataset:
        """Return curvefit_coefficients(param) and curvefit_covariance(cov_i, cov_j), named as in xarray."""
        names = list(self.names)
        covariance = np.full((len(names), len(names)), np.nan) if self.pcov is None else self.pcov
        return xarray.Dataset(
            {
                "curvefit_coefficients": ("param", self.popt),
                "curvefit_covariance": (("cov_i", "cov_j"), covariance),
            },
            {"param": names, "cov_i": names, "cov_j": names, "unit": ("param", list(self.units))},
            {"outcome": self.outcome.name, "chisqr": self.chisqr, "ndata": self.ndata},
        )

    def to_json(self, path: str | Path) -> None:
        """Write the whole result as JSON; unknown numbers are null."""
        record = {
            name: getattr(self, name) for name in ("model", "names", "units", "ndata", "passes")
        }
        record |= {"chisqr": self.chisqr, "redchi": self.redchi, "outcome": self.outcome.name}
        record |= {"popt": self.popt.tolist(), "stderr": self.stderr.tolist()}
        record |= {"pcov": None if self.pcov is None else self.pcov.tolist()}
        record |= {
            "undetermined": self.undetermined,
            "history": self.history,
            "timings": self.timings,
        }
        write_atomic(
            path_of("path", path), json.dumps(_known(record), indent=1, allow_nan=False) + "\n"
        )

    def __repr__(self) -> str:
        return abridged(str(self))

    def _repr_html_(self) -> str:
        rows = [["parameter", "value ± stderr", "unit"]]
        for name, value, error, unit in zip(
            self.names, self.popt, self.stderr, self.units, strict=True
        ):
            rows.append([name, numbers.value_and_error(value, error), unit])
        return html_table(self.model, rows, [self.outcome.value, self._facts, *self.undetermined])

    @property
    def _facts(self) -> str:
        found = f"χ² {self.chisqr:.6g} for {self.ndata:,} points, reduced χ² {self.redchi:.6g}"
        return f"{found}, {self.passes} pass{'es' * (self.passes != 1)}"

    def __str__(self) -> str:
        rows = [
            [name, f"{numbers.value_and_error(value, error)} {unit}".rstrip()]
            for name, value, error, unit in zip(
                self.names, self.popt, self.stderr, self.units, strict=True
            )
        ]
        undetermined = [f"undetermined: {sentence}" for sentence in self.undetermined]
        head = [self.model, "", self.outcome.value, *undetermined, ""]
        return "\n".join([*head, *aligned_columns(rows, left=2), "", self._facts])


def curve_fit_result(
    request: residual_fit.ResidualRequest, output: residual_fit.ResidualOutput
) -> CurveFit:
    """Return the result of a finished fit."""
    state = output.state
    return CurveFit(
        names=request.search.names,
        popt=state.theta,
        pcov=output.covariance,
        outcome=state.outcome,
        chisqr=state.reduced.chisqr,
        redchi=output.redchi,
        ndata=state.reduced.ndata,
        passes=state.passes,
        undetermined=output.undetermined,
        model=request.model.name,
        units=tuple(p.unit for p in request.model.parameters),
        history=tuple(output.history),
        timings=output.timings,
        compilations=output.compilations,
    )


def _known(value: Any) -> Any:
    """Return a value with None in place of numbers that are not finite."""
    if isinstance(value, Mapping):
        return {key: _known(of) for key, of in value.items()}
    if isinstance(value, list | tuple):
        return [_known(of) for of in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
