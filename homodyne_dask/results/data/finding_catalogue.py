"""All that a fit can find: of each code its severity, its sentence, what it means, and what to do.

An entry is a code with its severity, its meaning, after '>' what to do; and, indented, the template of the
sentence, which is filled as by `str.format` with the numbers of a finding, `about` and `advice`; `_Template`
adds words that depend on them.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from string import Formatter
from typing import Any, NamedTuple

from homodyne_dask.results.data.number_format import value_and_error
from homodyne_dask.text import joined_with_and, some_of, with_unit


class Severity(StrEnum):
    """How much a finding weighs, the least first."""

    INFO = "info"
    """To know."""
    NOTE = "note"
    """It limits what the values say; none of them is doubtful."""
    WARNING = "warning"
    """A value or an error is unknown, or doubtful."""
    ERROR = "error"
    """The values are not to be used as they are: part of the verdict."""


class Entry(NamedTuple):
    """What the catalogue says of a code."""

    severity: Severity
    template: str
    meaning: str
    remedy: str


MISFIT = frozenset({"model-misfit", "model-misfit-shape", "power-of-q", "table-misfit"})
"""Codes that say that the model does not describe the data."""
OF_MISFIT = "no error allows for a misfit of the model"

_TEXT = """
model-misfit error: averages of residuals deviate by more than noise allows > see maps.png and the next
finding
  the model does not describe the data: {deviating:,} of {tests:,} residuals averaged over cells of age and
  lag {deviating:exceeds|exceed} what noise and correlated speckle allow ({threshold:.1f} standard errors);
  {deviating:it is|the largest is} at ages {age:range} s and lags {lag:range} s in {where}, where c2 lies
  {share:below|above} the model by {share:share} the contrast ({largest:.1f} standard errors)
model-misfit-shape error: a change that the model lacks explains the residuals > see the next finding
  the model does not describe the data: c2 deviates by {share:share} the contrast in a way that no values of
  the parameters explain (p = {p:.1g})
power-of-q error: the model assumes rates proportional to q² > fit the power of q, or each ring separately
  the rates scale as q to the power of about {power:error} instead of the power 2 of {model} (p = {p:.1g});
  the model `stretched_q` fits the power, and `{advice}` fits each ring separately and gives the
  power to quote
chisqr-too-high error: χ² is far above the number of data > see the residuals, compare models, check σ
  the reduced χ² is {redchi:.3g}: the model does not describe the data, or {sigma_source:sigma}; see maps.png
  and residuals.png before using the values{advice:?, and compare models with `&`}
default-bounds-reached error: the default bounds kept the model from fitting the data > widen the bounds
  {about} ended at {about:its default bound|their default bounds}: move the {about:bound|bounds} as the
  finding `at-bound` says{advice:?; if c2 still deviates, try `&`}
flow-may-reverse error: a shear rate of free form was not searched for below 0 > give bounds of both signs
  {about} was kept at 0 or above, its default bound: if the flow may have reversed, try `{advice}`
other-convention error: homodyne's shear factor is not that of a linear profile > fit the physical one
  the shear factor of homodyne's convention is a sinc⁴, but that of a linear velocity profile is a sinc²: try
  `{advice}`
misfit-pattern error: where the deviations from the model differ most > try the command
  the deviations {depends_on:pattern}{advice:?: try `&`}
one-direction error: bins of one q decay differently, but f is the same at all φ > fit a model with motion
  the decays depend on φ, as they would if the sample moved in one direction: `{advice}`, with your gap,
  models such motion
other-exponent error: the decay is not that of the model at any age > fit a model with an exponent
  the decay is {size:stretched|compressed}: estimated in one step from the fit, its exponent differs by
  {size:+.2g}; {advice:?try `&`, or }define a model with the exponent (`homodyne-dask explain models`)
rate-changes error: rates change with age otherwise than the model says > fit rates without a formula
  the rates change with age in another way than in the model: `{advice}` makes no assumption about this change
rate-jumps error: the correlation across an age differs from the model > fit rates without a formula
  the correlation between frames before and after {moment:.4g} s is {size:lower|higher} than in the model by
  about {size:change}, as if the sample moved {size:more|less} for a while: `{advice}` does not assume how
  rates change
baseline error: c2 depends on age at all lags > divide counts by the mean of each frame before correlating
  c2 without correlation {size:falls|rises} by about {size:change} over the record, as if counts were not
  divided by the mean of their frame, or were divided by a wrong mean: correlate them again
own-average error: pixels seem to be divided by their own averages over time > divide counts by means over
pixels before correlating
  c2 is {size:lower|higher} where its mean over all lags is large, as if each pixel were divided by its own
  average over time: correlate counts that are divided by means over pixels instead
contrast-drift error: the contrast depends on age, as with a drifting beam > fit age windows
  the contrast {size:falls|rises} by about {size:change} over the record, as with a drifting beam: `{advice}`
  gives each age window its own contrast
bin-differs error: one bin has a decay of its own > exclude it, or fit each scan separately
  the bin labelled {about} decays about {size:change} {size:slower|faster} than the others: `{advice}` fits
  {of_scan:each scan separately|the other bins}
frames-differ error: c2 of some frames differs from that of all others > exclude them
  c2 of {alone:frame|frames} {frames:range} is {size:lower|higher} than elsewhere by about {size:share} the
  contrast: see maps.png; `{advice}` fits the other frames
rate-too-smooth error: a given smoothness is more than the data allow > leave the option out
  {about}(t) bends more than the given smoothness allows: omit `{advice}`, or give a smaller value
not-checked note: too little is known of the noise of averages of c2 > fit more frames, or fewer parameters
  whether the model describes the data was not checked: the noise is known for too few averages over cells of
  age and lag
table-misfit error: points are further from the model than their errors > see the residuals, compare models
  the reduced χ² is {redchi:.3g}: the model does not describe the curves, or {sigma_source:sigma}; see
  cuts.png before using the values{advice:?, and compare models with `&`}
points-correlated warning: a table has no covariance of its points > fit two-time data, or more curves at once
  points of one curve come from the same photons and are correlated: χ² checks the model only
  roughly{few:?, and naive errors may be several times too small, so that there is no standard error with
  fewer than & independent curves}; two-time data show the noise of speckle itself, whether rates change with
  age, and single frames that differ
no-decay warning: c2 is constant within its noise > measure with shorter frames, or for longer
  the mean contrast is {contrast:.2g}, {ratio:.1f} times its error of {stderr:.2g}, but noise alone reaches
  {threshold:.1f} times its error; that of a single bin is at most {of_bins:.1f} times its error, but noise
  alone reaches {threshold_of_bins:.1f} times{rises:?; c2 rises where the model falls}. No parameter is
  determined: use shorter frames{advice:? or &} for a faster decay, a longer record for a slower one, more
  pixels or frames for a weaker one
constant-rate warning: amplitude, exponent and offset of a constant rate cannot be told apart > fix the last
two
  {rates:rates} at the mean age of {age:.4g} s {rates:is|are} constant within {rates:its error|their errors},
  so that the data do not determine {about} separately; with {held} fixed at 0, `{advice}` fits {rates:the
  constant|both constants}
undetermined warning: χ² is the same for other values > fix one, or measure more angles, lags or q
  the data do not determine {about}: {about:χ² hardly depends on it|they compensate for each other}; fix
  {about:it|one of them}{advice:?, or try `&`}
larger-error warning: zero, and twice the value, fit as well > fix the parameter, or use a simpler model
  the data do not determine {about}: {about:its error is larger than its value; fix it|their errors are larger
  than their values; fix one of them}{advice:?, or try `&`}
hidden-by-rounding warning: sums in single precision do not show whether the parameter is determined > fit in
float64
  the rounding of precision 'mixed' hides whether the data determine {about}: fit with `{advice}`
longer-than-record warning: only the beginning of the decay is seen > give the offset, or measure for longer
  the data do not determine {about}: the decay is longer than the record, so that only contrast times {about}
  is seen; {advice:?treat the offset as known (`&`), or }measure for longer
determined info: other parameters are not determined, but these are > use these
  the data do determine {about}
almost-undetermined warning: changing the parameters changes χ² by less than 1 part in 10 million > fix one of
them
  {about} {about:is almost undetermined: fix it|are almost undetermined: fix one of them, or report only the
  combination of them that the data determine}
strongly-correlated note: each parameter has an error, which says little without the covariance > quote the
covariance
  {about} are determined only in combination (correlation {correlation:+.4f}): quote them with their
  covariance
mostly-outliers warning: the loss leaves too few data from which to compute errors > give a larger loss scale
  the loss treats most data of some bins as outliers; the others do not determine the errors: give a
  larger loss_scale
damaged-chunks warning: files of the store cannot be read > ingest again, or restore the files
  {chunks:,} damaged {chunks:chunk|chunks} with {pairs:,} {datum} {chunks:is|are} excluded (on_bad_tile):
  {about:some}
chisqr-high-in-bins warning: data and model differ by far more than σ > see maps.png, exclude outliers, check
σ
  the reduced χ² is as high as {highest:.3g} (in the bins labelled {about:some}): some {datum} are outliers,
  σ is too small, or the model is wrong; maps.png shows where
chisqr-low-in-bins warning: no noise of counted photons is so small > check counts and pixels in the file
  the reduced χ² is as low as {lowest:.3g} (in the bins labelled {about:some}): {counted:c2 scatters less than
  its counts imply; counts or pixels in the file are too few, or c2 was averaged or smoothed|σ is too large:
  ingest again with the standard deviation of a pair as σ, or without σ}
same-at-all-q warning: one rate was fitted to several rings > fit each ring separately
  {model} has the same f at all q, but the data have {rings}: fit each q separately with `{advice}`
shear-sign note: c2 does not depend on the sign of the shear rate > give a bound, if you know the sign
  the sign of the shear rate ({rate:.3g} 1/s in the middle of the record) is not observable, and gamma_dot is
  given as if it were positive there{bounded:?; a lower bound of 0 on & restricts it to positive rates}
fringes-aliased warning: fringes turn more than half a period per frame > exclude these bins, or use shorter
frames
  {speed} moves the fringes of {fast} of {bins} bins by up to {turns:.3g} periods per frame: above {limit:g},
  they appear slower than they are; exclude these bins, or use shorter frames
fringes-limit info: which speeds the frames can show > measure faster flow with shorter frames
  fringes can be followed up to half a period per frame of {spacing:.4g} s: faster ones, above {highest:.4g}
  {unit}{q:? at q = & 1/Å}, appear slower than they are
exchangeable note: only names tell the two components apart > fix a parameter of one of them, if you know it
  reference and sample are exchangeable: c2 is unchanged by exchanging {exchange}
precision-limit note: rounding of the sums moves the optimum > fit in float64
  with precision {precision!r}, the optimum is known only to within {errors:.1g} standard errors
rate-at-bound warning: a rate without a formula reached its bound at some ages > widen the bound
  {about}(t) is at its bound {bound:g} in {splines} of {total} splines: near these, the band is only a limit
rate-unresolved warning: a rate without a formula changes too fast for its splines > take a power law, or more
knots
  {about}(t) changes faster at ages {ages:ranges} s than its splines can follow: its values there have no ±;
  more `--knots` may follow it, or a power law, if it describes the data
rate-limit-only note: c2 depends on the square of a shear rate near 0 > quote the upper limit
  {about}(t) is near 0 at ages {ages:ranges} s, where c2 depends on its square: only its upper limit is known
at-bound warning: χ² falls toward values outside the bounds > fix the parameter, or widen them
  {bounds:bounds} {about:is at its bound|are at their bounds}: try `{advice}`, or fix
  {about:the parameter|the parameters}{conditional:?; the errors of the other parameters
  assume that & cannot move}
limits-only note: the interval of a parameter reaches a bound > quote the limit
  bounds lie within the 95 % intervals, so only limits are known (95 %): {limits:limits}; value ± error does
  not describe {about:it|them}
no-error-beside-bound warning: the bound of another parameter determines the value of this one > widen that
bound
  {about} {about:has|have} no standard error, because the correlation with {bounded}, which ended at a bound,
  is above 0.7{advice:?; try `&`}
bins-without-decay note: f has decayed before the first lag > use shorter frames to see them
  {bins} of {total} bins {bins:shows no decay: its|show no decay: their} contrast is unknown
bins-without-pairs note: all data of these bins are masked or unknown > check the masks
  {bins} of {total} bins {bins:has|have} no known data
q-unknown note: the file has no q > ingest it with q
  q is unknown: the {about:value|values} given for {about} {about:is|are} in 1/s and {about:includes|include}
  the factor q²
few-independent-bins warning: Friedel pairs count as one bin > divide 180° instead of 360° into sectors
  only {independent} of {bins} bins are independent: bins of one q that are 180° apart see the same speckle;
  with {needed} or more, for example sectors that divide 180° instead of 360°, errors can be computed from
  their scatter; if opposite bins see different speckle, give `{advice}`
no-standard-error warning: neither the scatter of bins nor the theory of speckle gives errors > fit more bins
  there {about:is|are} no standard {about:error|errors}{about:? of &}: with fewer than {clusters} independent
  bins, or {freedom:g} degrees of freedom of a parameter, errors are computed from speckle noise, but this is
  not possible here, because {why:objection}; fit more frames, c2 that was not smoothed, or {clusters}
  independent bins, for example of repeats. Naive errors are too small for correlated speckle
not-a-correlation note: the theory of speckle needs a valid field correlation > trust the errors less
  √f is not a valid field correlation: the standard errors are those of the nearest valid one ({percent:.0f} %
  away)
far-from-prior warning: prior and data contradict each other > check the prior, σ and the model
  {about} {about:is|are} {deviations:.1f} standard deviations from {about:its prior|their priors}: the prior,
  σ or the model is wrong
prior-outweighed note: the fit hardly uses the prior > draw the posterior
  the {about:error|errors} of {about} {about:exceeds that of its prior|exceed those of their priors}: χ²
  counts correlated pairs as independent; `posterior` weights prior and data by their errors
no-profile note: a profile needs a standard error to start from > widen the bound, or fix other parameters
  there is no profile of {about}: {about:it is|they are} at a bound, or {about:its error is|their errors are}
  unknown
contrast-changes warning: the contrasts lie on a curve in q or φ > compare models, check the setup
  the contrast changes with {about} by more than its errors (a smooth curve varies between {low:.3g} and
  {high:.3g}): it compensates for a decay that the model lacks, or the contrast of the setup is not constant
decay-outside-record warning: contrast or offset is extrapolated > give the offset, or measure other lags
  the contrast is above 1 or the offset below {limit:g} in {bins} of {total} bins: they are extrapolated from
  a decay that is mostly outside the lags of the record{advice:?; `&` treats the offset as known}
offset-high warning: c2 in the file has another scale > normalise c2 before ingest
  the offset is above {limit:g} in {bins} of {total} bins, but c2 without correlation is 1: c2 and the
  contrast are in another unit, such as per cent, not normalised, or the sum of c2 and its transpose
offset-far-from-1 warning: part of c2 does not decay, or it is normalised otherwise > fit a frozen part,
check how c2 was normalised
  c2 does not tend to 1: the offset is {size:below|above} it by {size:share} the contrast, as if {size:pixels
  were divided by their own averages over time|part of the sample were frozen or slow, pixels of a bin
  differed in mean intensity (background), or c2 were normalised otherwise}{advice:?; if a part is frozen, the
  rest is up to 2 times as fast: `&` fits both}
offset-not-1 note: a small part of c2 may not decay, or it is normalised otherwise > check how it was
normalised
  the offset is {size:below|above} 1 by {size:share} the contrast, as with {size:another normalisation|a small
  part that is frozen or slow, a background, or another normalisation}{advice:?; `&` fits such a part}
scaling-at-bound warning: a bound holds contrast or offset > widen it, unless you know it
  the {about} is at its bound in {bins} of {total} bins: it has no error there, and the errors of the
  parameters assume that it is fixed
scans-disagree error: scans fitted together differ by more than their errors > let a parameter differ between
scans
  the scans do not agree in {about} (p = {p:.1g}){scan:?: without scan & they do}; `{advice}`
  lets {about:it|them} differ between scans
scan-outweighed warning: pairs that share speckle count as independent > fit scans separately, take their mean
  the error of {about} from all scans ({stderr:.2g}) is larger than that of scan {scan} alone ({least:.2g}):
  correlated pairs of other scans outweigh it; use scan {scan} alone, or the mean of separate fits
simulated-otherwise note: simulation and fit do not have the same parameters > fit as simulated, to compare
  the data were simulated with {option} {value}, so the fit is not compared with the true values
"""


_CHOICES: dict[str, dict[str, str]] = {
    "pattern": {
        "q": "differ from ring to ring",
        "bin": "differ between bins of one q",
        "age": "change with age",
        "lag": "are those of a decay of another shape at all ages",
    },
    "sigma": {
        "counts": "σ from counts is too small",
        "constant": "the given σ is too small",
        "table": "the errors of the table are too small",
        "residuals": "noise is common to neighbouring points",
        "scatter": "speckle is correlated over many pairs, which the scatter of neighbours does not show",
    },
    "objection": {
        "few-cells": "too few cells of age and lag lie inside the selected frames",
        "large": "the residuals are larger than the noise of one pixel",
        "deviating": "the averages of residuals over cells deviate from 0 by more than the scatter of "
        "individual pairs allows: the model is wrong, or c2 was smoothed or denoised beforehand",
        "not-normal": "the residuals are not normal",
        "together": "those of parts that are fitted together follow from the scatter of bins alone",
    },
}
"""Words for values of a number."""


def _joined(value: Any, spec: str = "") -> str:
    each = value if isinstance(value, list | tuple) else [value]
    return joined_with_and(["unknown" if one is None else format(one, spec) for one in each])


def _change(share: float) -> str:
    """Return '7.8 %', '120 %', or '8.9 times'."""
    size = abs(share)
    value, unit = (size, "times") if size >= 2 else (100 * size, "%")
    return f"{value:,.0f} {unit}" if value >= 10 else f"{value:.2g} {unit}"


def _range(ends: list[float]) -> str:
    low, high = (f"{value:.4g}" for value in ends)
    return low if low == high else f"{low} to {high}"


def _bounds(values: dict[str, list[float | None]]) -> str:
    """Return 'D0 = 1 (allowed 1 to 1e+06)'; bounds that are not finite are None."""
    words = []
    for name, (value, low, high) in values.items():
        least = "-inf" if low is None else f"{low:,g}"
        most = "inf" if high is None else f"{high:,g}"
        words.append(f"{name} = {value:,g} (allowed {least} to {most})")
    return _joined(words)


def _limit(name: str, low: float | None, high: float | None, unit: str) -> str:
    """Return the lower or upper limit of a parameter; of one between its bounds both."""
    if low is None:
        return with_unit(f"{name} below {high:.3g}", unit)
    if high is None:
        return with_unit(f"{name} above {low:.3g}", unit)
    return f"{name} anywhere between {low:g} and {high:g}"


_WORDS: dict[str, Callable[[Any], str]] = {
    "some": partial(some_of, most=6),
    "change": _change,
    "share": lambda share: _change(share) + " of" * (abs(share) < 2),
    "range": _range,
    "ranges": lambda ranges: _joined([_range(ends) for ends in ranges]),
    "bounds": _bounds,
    "rates": lambda values: _joined(
        [with_unit(f"{name} = {value_and_error(*of[:2])}", of[2]) for name, of in values.items()]
    ),
    "limits": lambda values: ", ".join(_limit(name, *of) for name, of in values.items()),
    "error": lambda of: value_and_error(*of),
} | {name: words.__getitem__ for name, words in _CHOICES.items()}


def _first(value: Any) -> bool:
    """Return whether the first of two words fits: of one, of a number below 0, of what is true."""
    if isinstance(value, bool):
        return value
    if isinstance(value, list | tuple | dict):
        return len(value) == 1
    return value < 0 if isinstance(value, float) else value == 1


class _Template(Formatter):
    """`str.format` with words.

    {n:is|are} is the word for one or several, for a number below 0 or not, for true or false; {x:?, or &} is
    nothing where there is no x, and else the text with x in it; {x:change} calls one of `_WORDS`; numbers of
    a list are joined with 'and'.
    """

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.startswith("?"):
            return format_spec[1:].replace("&", _joined(value)) if value else ""
        if "|" in format_spec:
            return format_spec.split("|")[not _first(value)]
        if format_spec in _WORDS and value is not None:
            return _WORDS[format_spec](value)
        return _joined(value, format_spec)


def _catalogue() -> dict[str, Entry]:
    entries = {}
    for head, template in re.findall(r"((?:^\w.*\n)+)((?:^ .*\n)+)", _TEXT, re.MULTILINE):
        (name, _, about), words = " ".join(head.split()).partition(": "), " ".join(template.split())
        code, severity = name.split()
        entries[code] = Entry(Severity(severity), words, *about.split(" > "))
    return entries


CATALOGUE = _catalogue()


def sentence_of(code: str, about: Sequence[str], numbers: Mapping[str, Any], advice: str) -> str:
    """Return the sentence of a finding."""
    return _Template().vformat(
        CATALOGUE[code].template, (), {**numbers, "about": about, "advice": advice}
    )
