"""What is known of a fit after its last pass, and the commands to try from there."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shlex import quote
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.assessment.decay_test import Signal
from homodyne_dask.assessment.fit_end import FitEnd
from homodyne_dask.assessment.profile_likelihood import ProfilePoint
from homodyne_dask.assessment.rate_errors_and_limits import MOST_UNSURE, RateFreedom, constant_rates
from homodyne_dask.assessment.speckle_errors import SpeckleErrors
from homodyne_dask.assessment.speckle_noise import BinNoise
from homodyne_dask.assessment.which_covariance import deviations
from homodyne_dask.errors import OptionError
from homodyne_dask.models.derived_models import parsed
from homodyne_dask.models.rate_forms import RATES
from homodyne_dask.models.transport import Convention
from homodyne_dask.models.user_defined import importable_models
from homodyne_dask.request.options import AUTO, PAIRS
from homodyne_dask.results.data.findings import Findings
from homodyne_dask.results.data.fit_result import ModelCheck, PowerOfQ
from homodyne_dask.solver.array_shapes import PerBin, SomeBins, Theta, Which
from homodyne_dask.solver.covariance import Uncertainty
from homodyne_dask.solver.influence import LeftOutClusters, ScalingComparison
from homodyne_dask.store.files import any_path, working_folder
from homodyne_dask.store.rings_and_clusters import rings_of

NO_FINDINGS = Findings()
AGEING_MODELS = {"brownian": "power_law", "stretched": "stretched_ageing"}
AGEING_MODELS |= {"couette": "laminar_flow", "poiseuille": "poiseuille_flow"}
"""Models of constant rates, and those of the same motion whose rates are powers of age."""
_WITH_FROZEN = "frozen + "


class Influence(NamedTuple):
    """How the result depends on single bins and scans, in units of the errors, and on the scaling mode."""

    error: Theta
    """The unit (`error_used`)."""
    of_bin: Float[np.ndarray, "bin p"]
    scans: Int[np.ndarray, " scan"]
    """Numbers of the scans, where there are several; else empty."""
    of_scan: Float[np.ndarray, "scan p"]
    modes: list[ScalingComparison] | None
    """None where another scaling mode would change the weights, or has no such prior."""


@dataclass(frozen=True, kw_only=True)
class Assessment:
    case: str
    """Which covariance counts: a code of `which_covariance.CASES`."""
    errors: Uncertainty
    noise: SpeckleErrors | None
    """Of each bin; None where too little is known of it, or no decay is seen."""
    signal: Signal | None
    at_bound: Which
    redchi: PerBin
    limited: Which
    """Coefficients of a shear rate of which only an upper limit is known."""
    rate_freedom: RateFreedom | None = None
    profiles: Mapping[str, list[ProfilePoint]] = MappingProxyType({})
    gain: Theta | None = None
    """Errors with weighting speckle over those of this fit; None where they are not known."""
    bias: Theta | None = None
    """What the smoothing of rates adds to a parameter; None where nothing is smoothed."""
    check: ModelCheck | None = None
    power_of_q: PowerOfQ | None = None
    p_of_other_profile: float = 1.0
    """Probability of residuals so far from those under the other profile of a flow, if that is right."""
    influence: Influence | None = None
    left_out: LeftOutClusters | None = None
    findings: Findings = NO_FINDINGS

    @property
    def decay(self) -> bool:
        """Whether a decay is seen: without one, no parameter and no contrast is measured."""
        return self.signal is None or self.signal.seen

    def noise_of_store(self, bins: Sequence[int]) -> "NoiseOfStore | None":
        """Return the noise by the numbers that bins have in the store; None where it is not known."""
        if self.noise is None or self.noise.objection:
            return None
        return NoiseOfStore({bins[b]: noise for b, noise in self.noise.bins.items()})

    @property
    def alone(self) -> bool:
        """Whether the sums are those of the optimum: those of one scan of several tell of its own only."""
        return self.case != "global_fit"


class NoiseOfStore:
    """The noise of bins, by their number in the store: a copy at each call, as events are read-only."""

    __slots__ = ("_bins",)

    def __init__(self, bins: dict[int, BinNoise]) -> None:
        self._bins = bins

    def __call__(self) -> dict[int, BinNoise]:
        return dict(self._bins)


@dataclass(frozen=True)
class AssessedFit(FitEnd):
    """A fit with what is known of it, and the commands to try from there."""

    assessment: Assessment
    of_all_scans: bool = False

    @cached_property
    def names(self) -> np.ndarray:
        return np.array(self.request.search.names)

    @property
    def with_decay(self) -> SomeBins:
        return (self.reduced.count > 0) & ~self.reduced.undetermined

    @cached_property
    def stderr(self) -> Theta:
        return deviations(self.assessment.errors.robust, len(self.names))

    @cached_property
    def slower_than_record(self) -> Which:
        """Which positive parameters are at their lower default bounds, with all contrasts above 1."""
        search, seen = self.request.search, self.with_decay
        if not (seen.any() and (self.reduced.contrast[seen] > 1.0).all()):
            return np.zeros(len(self.names), bool)
        bounds_of_user = list(self.request.options.bounds or {})
        by_default = ~np.isin(names_in_model(self.names), bounds_of_user)
        return search.free & (search.lower > 0) & (self.theta <= search.lower) & by_default

    @property
    def age(self) -> float:
        """The mean age of the data [s]."""
        return float(np.mean(self.request.scan.time[self.request.scan.use][[0, -1]]))

    @cached_property
    def constant(self) -> dict[str, tuple[float, float, str]]:
        """The rates that are constant within their errors, with these at the mean age."""
        if self.of_all_scans or not self.assessment.decay:
            return {}
        errors, noise = self.assessment.errors, self.assessment.noise
        covariances = [] if errors.robust is None else [(errors.robust, errors.dof)]
        if noise is not None and not noise.objection:
            covariances.append((noise.covariance, noise.dof))
        return constant_rates(self, self.age, covariances)

    @cached_property
    def of_constant(self) -> Which:
        """The parameters of constant rates, which no other finding names."""
        return np.isin(self.names, [name for rate in self.constant for name in RATES[rate]])

    @cached_property
    def inseparable(self) -> list[tuple[str, ...]]:
        """Amplitude, exponent and offset of each rate, all free, of which the first is not known: they change
        together in a valley of χ², far beyond linear errors and limits."""
        unsure = (self.stderr > MOST_UNSURE * np.abs(self.theta)) & ~self.of_constant
        laws = [law for law in RATES.values() if law[0] in self.names[unsure]]
        return [law for law in laws if set(self.names[self.moved]).issuperset(law)]

    @property
    def held_offsets(self) -> Which:
        """The offsets of rates at negative bounds: further down they only make the rest of a rate larger."""
        search, last = self.request.search, [names[-1] for names in RATES.values()]
        negative = (search.lower < 0) & (self.theta <= search.lower)
        return negative & np.isin(names_in_model(self.names), last)

    @property
    def at_natural_bound(self) -> Which:
        """Which are at 0, or shares at 1, of bounds of the model; exponents may have any sign."""
        lower, upper = np.array([parameter.bounds for parameter in self.request.parameters]).T
        exponents = np.char.find(self.names.astype(str), "exponent") >= 0
        at_end = (self.theta == 0) | ((self.theta == 1) & (upper == 1))
        return self.assessment.at_bound & (lower == 0) & at_end & ~exponents

    @property
    def known_offset(self) -> str:
        """The options that treat offsets as known; '' where they are fixed."""
        mode = self.request.scaling.mode
        individual = "--scaling individual " * (mode not in ("individual", "shared"))
        return individual + "--offset prior=1:0.01" if mode != "fixed" else ""

    def command(
        self, option: str = "", model: str = "", convention: Convention | None = None
    ) -> str:
        """Return the command that fits this model, or another, with none of the other options.

        Of a model that only this process knows by name it has the option alone.
        """
        request, name = self.request, model or self.request.problem.model.name
        names = _parameters_of(name)
        if names is None:
            return option
        words = ["homodyne-dask fit", self._words_of_data, "--model", quote(name)]
        ties = (request.options.tie or {}).items()
        # another model may not have the parameter that was tied
        words += [f'--tie "{tied} = {expression}"' for tied, expression in ties if tied in names]
        if (convention or request.problem.convention) is Convention.HOMODYNE:
            words.append("--convention homodyne")
        if request.gap_angstrom is not None:
            words.append(f'--gap "{request.gap_angstrom / 1e4:.10g} um"')
        match request.options.offset:
            case {"prior": (mean, deviation)} if _WITH_FROZEN in name and "--offset" not in option:
                # beside a free offset a frozen part is refused
                words.append(f"--offset prior={mean:g}:{deviation:g}")
        return " ".join([*words, option]).rstrip()

    @property
    def _words_of_data(self) -> str:
        """The store, as short as it can be typed here, and what of it was selected."""
        scan = self.request.scan
        path = any_path("store", scan.path)
        if isinstance(path, Path) and path.is_relative_to(working_folder()):
            path = path.relative_to(working_folder())
        # a name that begins with - would be read as an option
        store = f"./{path}" if str(path).startswith("-") else str(path)
        return f"{quote(store)} {scan.selection_options}".strip()

    @property
    def again(self) -> str:
        """The command that fits this model, to which an option is added."""
        return self.command()

    @property
    def physical(self) -> str:
        return self.command(convention=Convention.PHYSICAL)

    @property
    def with_flow(self) -> str:
        """The command for a model with flow; with the gap to be typed where it is not known."""
        gap = '--gap "200 um"' * (self.request.gap_angstrom is None)
        return self.command(gap, "laminar_flow")

    @property
    def with_other_profile(self) -> str:
        return self.command(model=self.request.problem.model.with_other_profile.name)

    @property
    def with_exponent(self) -> str:
        """The command for a model with an exponent and the powers of q or age of this one, or ''."""
        search = self.request.search
        if not self.request.problem.model.isotropic:
            return ""
        if len(rings_of(self.request.scan.q)) > 1:
            return self.command(model=self._beside_frozen("stretched_q"))
        ages = "alpha" in search.names and search.free[search.names.index("alpha")]
        return self.command(model=self._beside_frozen("stretched" + "_ageing" * bool(ages)))

    @property
    def with_power_of_age(self) -> str:
        """The command for the model whose rates are those of this one times a power of age, or ''."""
        ageing = AGEING_MODELS.get(self.request.problem.model.name.removeprefix(_WITH_FROZEN))
        return self.command(model=self._beside_frozen(ageing)) if ageing else ""

    def _beside_frozen(self, model: str) -> str:
        """Return a model with the frozen part that this one has."""
        return _WITH_FROZEN * self.request.problem.model.name.startswith(_WITH_FROZEN) + model

    @property
    def simpler(self) -> str:
        """The command for a model with fewer parameters of diffusion, or ''."""
        simpler = self.request.problem.model.simpler
        return self.command(model=simpler) if simpler and not self.request.search.smoothness else ""

    @property
    def compared(self) -> str:
        """The command that compares models; '' where it is refused."""
        compared = self.request.options.weighting == PAIRS and self.request.problem.loss == "linear"
        return self.command(model=AUTO) if compared else ""

    @property
    def free_rates(self) -> str:
        """The command that fits rates without a formula, or age windows where there is none."""
        model = self.request.problem.model.model_of_free_rates
        if model:
            return self.command("--rates spline", model)
        return self.command("--over age --windows 4")


def _parameters_of(name: str) -> tuple[str, ...] | None:
    """Return the parameters of a model; None of one that another process does not know by this name."""
    models = importable_models()
    with suppress(OptionError):  # that of a sum with a model that only this process has
        if definition := models.get(name) or parsed(name, models):
            return tuple(definition.names)
    # of `auto`, which stands for several models, no parameter is certain
    return () if name == AUTO else None


def names_in_model(names: np.ndarray | list[str]) -> list[str]:
    """Return the names of parameters in the model: 'D0' of 'D0 of scan 3'."""
    return [name.partition(" of ")[0] for name in names]
