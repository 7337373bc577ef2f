"""Whether a fitted model describes the data: the test of averaged residuals, as numbers and in words."""

from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any, NamedTuple

from homodyne_dask.results.data.number_format import value_and_error
from homodyne_dask.solver.hausman import HausmanTest
from homodyne_dask.solver.limits import IMPROBABLE
from homodyne_dask.text import joined_with_and

WITHOUT_ANGLES = (
    "brownian", "power_law", "static", "stretched", "stretched_q", "stretched_ageing"
)  # fmt: skip
"""Built-in models whose f is the same at all φ."""
_ADVICE = {
    "q": "the deviations differ from ring to ring: `{} --over q` fits each ring separately",
    "bin": "the deviations differ between bins of one q: `{} --phi -30:30` fits only some angles",
    "age": "the deviations change with age: `{} --over age --windows 4` fits each age window separately",
    "lag": "the shape of the decay deviates at all ages: compare other models "
    "(`homodyne-dask explain models`), or compare age windows with `{} --over age --windows 4`",
}
"""By what the deviations depend on; the command of this fit goes into the braces."""
_FREE_RATES = ("static", "laminar_flow")
"""Models whose rates may be without a formula."""
_RATES = (
    "the deviations change with age: `{} --rates spline` fits rates without a formula, "
    "and `{} --over age --windows 4` fits each age window separately"
)
_SCALING = (
    "the deviations differ between bins of one q: `{} --scaling individual` gives each bin its own "
    "contrast and offset"
)
_LABELS = "the deviations differ between bins of one q: `{} --label N` fits a single bin"
_MOTION = (
    "as they would if the sample moved in one direction: "
    '`homodyne-dask fit {} --model laminar_flow --gap "200 um"`, with your gap, models such motion'
)


LARGE_STEP = 0.7
"""Step of an exponent from this size on of which only the direction is right."""
LARGE_BOUND = 100.0
"""From this size on a bound is moved by a power of ten, below, as that of an exponent, it is doubled."""
MAX_REDCHI = {"counts": 2.0, "constant": 1.5, "scatter": 1.5, "tested": 3.0}
"""χ²/N above which it is named first: by the source of σ, and where means of residuals were tested."""


class Alternative(NamedTuple):
    """What explains the deviations of a model from the data, by a score test."""

    name: str
    """stretching, power_of_q, shear, contrast_drift, bin, frames, frame or smoothness."""
    words: str
    """What it is of: '', 'the bin labelled 5', 'the bin labelled 5 of scan 2', or of all of '20 scans' that
    are alike, 'frames 30 to 35', 'frame 31', 'J'."""
    size: float
    """One step from the fit, about: of the exponent, of the power of q, of a rate, of the contrast."""
    share: float
    """The largest change of c2 by it that no parameter of the model could make, over the contrast."""
    p_value: float
    """Probability of so large a score of any alternative if the model is right."""


LARGEST_P, SMALLEST = IMPROBABLE, 0.05
"""p below which, and deviation from 2 above which, rates scale with another power of q."""


class PowerOfQ(NamedTuple):
    """The power of q with which rates scale, by the score test of it, and the test whether it is 2."""

    power: float
    """2 and one step from the fit: far from 2 it is about right only."""
    stderr: float
    """From the speckle and counting noise."""
    dof: float
    """Degrees of freedom of the size of that noise."""
    p: float
    """Probability of so much from 2 if rates scale as q²."""

    @property
    def differs(self) -> bool:
        """Whether rates do not scale as q²."""
        return self.p < LARGEST_P and abs(self.power - 2) > SMALLEST


class ModelCheck(NamedTuple):
    """The means of residuals over cells of age and lag against what counted photons allow.

    Each cell is tested in every bin, in the mean of the bins of each q, and in that of all.
    """

    tests: int
    """Number of means tested."""
    threshold: float
    """Standard errors that no mean exceeds in 199 of 200 fits of a right model."""
    deviating: int
    """Number of means beyond it."""
    largest: float
    """The largest deviation, in standard errors."""
    where: str
    """Of the largest deviation: 'all bins', 'the bins at q = 0.004 1/Å' or 'the bin labelled 5'."""
    age: tuple[float, float]
    """Its ages, s."""
    lag: tuple[float, float]
    """Its lags, s."""
    residual: float
    """c2 - model there."""
    share: float
    """The same over the contrast."""
    depends_on: str
    """What the deviations depend on most: q, bin, age or lag."""
    p_value: float | None = None
    """Probability of so large a χ² of the means over cells, made uncorrelated, if the model is right."""
    alternative: Alternative | None = None
    """What explains the deviations best; None where nothing that has a name does."""

    @property
    def misfit(self) -> bool:
        """Whether the model does not describe the data."""
        return self.deviating > 0 or self.alternative is not None


def selected_store(inputs: Mapping[str, Any]) -> str:
    """Return the store of a fit with the options of its selection, as a command has them."""
    return f"{inputs['store']} {inputs.get('selection', '')}".strip()


def fit_command(store: str, config: dict[str, Any]) -> str:
    """Return the command that fits this model to this store, without the other options."""
    gap = config.get("gap_angstrom")
    words = f"homodyne-dask fit {store} --model {quote(config['model'])}"
    words += "".join(f' --tie "{name} = {of}"' for name, of in (config.get("tie") or {}).items())
    return words if gap is None else f'{words} --gap "{gap / 1e4:g} um"'


def wider_bounds(name: str, value: float, low: float, high: float, log: bool) -> str:
    """Return what to do for a parameter at a bound: 'raise the bound with `--bounds D0=1:1e+14`'."""
    upper = value >= high
    if log:
        further = high * 100 if upper else low / 100
    else:
        reach = max(abs(low), abs(high))
        more = (10 if reach >= LARGE_BOUND else 2) * reach
        further = more if upper else -more
    low, high = (low, further) if upper else (further, high)
    return f"{'raise' if upper else 'lower'} the bound with `--bounds {name}={low:g}:{high:g}`"


def misfit_sentence(
    check: ModelCheck, store: str, config: dict[str, Any], bounded: Sequence[str] = (), *,
    q_known: bool = True, phi_known: bool = True, power_said: bool = False,
) -> str:  # fmt: skip
    """Return where the model deviates and what to type.

    store: its name. config: options of the fit. bounded: parameters that ended at a default bound.
    q_known, phi_known: of all bins; models of motion need both. power_said: whether `power_sentence` comes
    before, whose advice is not repeated.
    """
    found = check.alternative
    if power_said and found is not None and found.name == "power_of_q":
        return f"the model does not describe the data: {_evidence(check)}"
    if bounded:
        ended = (
            "ended at their default bounds" if len(bounded) > 1 else "ended at its default bound"
        )
        advice = (
            f"{joined_with_and(list(bounded))} {ended}: move the bound{'s' * (len(bounded) > 1)}, as the "
            f"warning below says; if c2 still deviates, try `--model auto`"
        )
    elif found is not None and config["scaling"] == "individual":
        advice = _of_alternative(found, store, config)
    else:
        advice = _of_deviations(check.depends_on, store, config, q_known, phi_known)
    return f"the model does not describe the data: {_evidence(check)}; {advice}"


def _evidence(check: ModelCheck) -> str:
    found, side = check.alternative, "above" if check.residual > 0 else "below"
    largest = "it is" if check.deviating == 1 else "the largest is"
    if found is not None and not check.deviating:
        return (
            f"c2 deviates by {_share(found.share)} the contrast in a way that no values of the parameters "
            f"explain (p = {found.p_value:.1g})"
        )
    return (
        f"{check.deviating:,} of {check.tests:,} residuals averaged over cells of age and lag "
        f"exceed{'s' * (check.deviating == 1)} what noise and correlated speckle allow "
        f"({check.threshold:.1f} standard errors); {largest} at ages {_span(check.age)} and lags "
        f"{_span(check.lag)} in {check.where}, where c2 lies {side} the model by "
        f"{_share(abs(check.share))} the contrast ({check.largest:.1f} standard errors)"
    )


def _of_deviations(
    depends_on: str, store: str, config: dict[str, Any], q_known: bool, phi_known: bool
) -> str:
    """Return the advice by what the means of residuals depend on."""
    command = fit_command(store, config)
    if depends_on == "bin" and config["scaling"] != "individual":
        return _SCALING.format(command)
    if depends_on == "bin" and not phi_known:
        return _LABELS.format(command)
    if depends_on == "bin" and q_known and config["model"] in WITHOUT_ANGLES:
        return f"the deviations differ between bins of one q, {_MOTION.format(store)}"
    if depends_on == "age" and config["model"] in _FREE_RATES and not config.get("tie"):
        return _RATES.format(command, command)
    return _ADVICE[depends_on].format(command)


def _of_alternative(found: Alternative, store: str, config: dict[str, Any]) -> str:
    """Return the advice by what explains the deviations."""
    command, size = fit_command(store, config), found.size
    if found.name == "stretching":
        word = "stretched" if size < 0 else "compressed"
        other = (
            "compare `--model stretched`, `--model stretched_q` and `--model stretched_ageing`"
            if config["model"] in WITHOUT_ANGLES
            else "a user-defined model can include the exponent (`homodyne-dask explain models`)"
        )
        if abs(size) < LARGE_STEP:
            exponent = f"of about {1 + size:.2g} instead of 1"
        else:
            exponent = f"far {'below' if size < 0 else 'above'} 1"
        return f"the decay is {word}, with an exponent {exponent}: {other}"
    if found.name == "power_of_q":
        return (
            f"the power of q with which rates scale differs from the model's by about {size:+.2g}: "
            f"`--model stretched_q` fits the power, and `{command} --over q` fits each ring separately"
        )
    if found.name == "smoothness":
        return (
            f"{found.words}(t) bends more than the given smoothness allows: omit "
            f"`--smoothness {found.words}=...`, so that the value is chosen from the data, or give a smaller "
            "value"
        )
    if found.name == "shear":
        return f"the decays depend on φ, {_MOTION.format(store)}"
    change = _change(abs(size))
    if found.name == "contrast_drift":
        return (
            f"the contrast {'rises' if size > 0 else 'falls'} by about {change} over the record, as with "
            f"a drifting beam: `{command} --over age --windows 4` gives each age window its own contrast"
        )
    if found.name == "bin":
        side = "faster" if size > 0 else "slower"
        says = f"{found.words} decays about {change} {side} than the others: `{command} "
        if " of scan " in found.words:
            return f"{says}--over scan` fits each scan separately"
        return f"{says}--exclude-label {found.words.split()[3]}` fits the other bins"
    first, *_, last = (int(one) for one in found.words.split()[1::2] * 2)
    side = "higher" if size > 0 else "lower"
    return (
        f"c2 of {found.words} is {side} than elsewhere by about {_share(abs(size))} the contrast: see "
        f"maps.png; `{command} --exclude-frames {first}:{last + 1}` fits the other frames"
    )


def power_sentence(law: PowerOfQ, store: str, config: dict[str, Any]) -> str:
    """Return with which power of q rates scale, and what to type. store: its name; config: of the fit."""
    power = value_and_error(law.power, law.stderr)
    return (
        f"the rates scale as q to the power of about {power} instead of 2 (p = {law.p:.1g}); "
        f"{config['model']} assumes q², so its parameters are not valid for all rings; "
        f"`--model stretched_q` fits the power, and `{fit_command(store, config)} --over q` fits each ring "
        f"separately"
    )


def hausman_sentence(test: HausmanTest, names: Sequence[str]) -> str:
    """Return that the two weightings disagree, and in which of the parameters that moved most."""
    size = [abs(of) for of in test.difference]
    most = size.index(max(size))
    return (
        f"the model does not describe the data: the estimates differ from those with --weighting pairs by "
        f"more than noise allows (Hausman test, p = {test.p:.1g}), that of {names[most]} most, by "
        f"{size[most]:.1f} standard deviations of the difference; try other models"
    )


def gross_sentence(redchi: float, sigma_source: str | None, tested: bool) -> str:
    """Return what a χ²/N far above 1 means, '' where it is not far above.

    sigma_source: counts, scatter or constant; None where unknown: nothing is said. tested: whether means of
    residuals were compared with noise.
    """
    if sigma_source is None or not redchi > MAX_REDCHI["tested" if tested else sigma_source]:
        return ""
    of_sigma = {
        "counts": "σ from counts is too small",
        "constant": "the given σ is too small",
        "scatter": "speckle is correlated over many pairs, which the scatter of neighbouring pairs does not "
        "show",
    }
    return (
        f"χ²/N is {redchi:.3g}: the model does not describe the data, or {of_sigma[sigma_source]}; see "
        f"maps.png and residuals.png before using the values, and compare models with `--model auto`"
    )


def _share(share: float) -> str:
    """Return '7.8 % of', '84 % of', or '8.9 times'."""
    change = _change(share)
    return f"{change} of" if change.endswith("%") else change


def _change(share: float) -> str:
    """Return '7.8 %', '120 %', or '8.9 times'."""
    return f"{_rounded(share)} times" if share >= 2 else f"{_rounded(100 * share)} %"


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _span(of: tuple[float, float]) -> str:
    low, high = (f"{value:.4g}" for value in of)
    return f"{low} s" if low == high else f"{low} to {high} s"
