"""Whatever options a configuration holds: a fit, or a sentence that says what is wrong with them."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import event, given, settings
from hypothesis import strategies as st

import homodyne_dask as hd
from homodyne_dask.cli.fit_config import FitConfig, read_config
from homodyne_dask.cli.run_fits import fit_jobs
from homodyne_dask.errors import HomodyneDaskError
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.models import model_named
from tests.synthetic import FLOW, angles, measured, module_scan

EXAMPLES = {name: yaml.safe_load(option.example) for name, option in FitConfig.options().items()}
ELSEWHERE = {"data", "scheduler", "key", "scheduler_file", "site", "jobs"}
FILES = {"output", "checkpoint", "overwrite"}
NAMES = sorted(set(EXAMPLES) - ELSEWHERE - FILES - {"model"})
WORDS = [
    "static", "homodyne", "shared", "fourier", "fixed", "auto", "huber", "cauchy", "mixed", "stream",
    "age", "q", "skip", "200 um", "0 um", "-1 mm", "nan", "1e400", "", "é",
]  # fmt: skip
numbers = st.one_of(
    st.sampled_from([0, 1, 2, 3, -1, 1e-320, 1e300, float("nan"), float("inf"), 0.0054, 1e4]),
    st.integers(-(10**20), 10**20), st.floats(),
)  # fmt: skip
named = st.dictionaries(st.sampled_from([*hd.LAMINAR_FLOW.names, "D1"]), numbers, max_size=3)
pairs = st.lists(numbers, min_size=2, max_size=2)
anything = st.one_of(
    st.none(), st.booleans(), numbers, st.sampled_from(WORDS), st.text(max_size=5), named, pairs,
    st.lists(pairs, max_size=3), st.lists(numbers, max_size=4),
    st.dictionaries(st.sampled_from(hd.LAMINAR_FLOW.names), pairs, max_size=2),
)  # fmt: skip
options = st.fixed_dictionaries(
    {"model": st.sampled_from(["static", "laminar_flow"])},
    optional={name: st.one_of(st.just(EXAMPLES[name]), anything) for name in NAMES},
)
scan = module_scan(lambda: measured(FLOW, 30, angles(4)))


def ending(scan, chosen, work) -> str:
    """What work on the fits of a configuration came to."""
    file = Path(scan.path).parent / "fit.yaml"
    file.write_text(yaml.safe_dump({"data": str(scan.path), "gap": "200 um"} | chosen))
    try:
        config = read_config(file)
        model = model_named(config.model)
        for job in fit_jobs(config):
            work(job.scan(), model, job.options)
    except HomodyneDaskError as e:
        said = str(e)
        assert said.strip()
        assert "\n" not in said
        return type(e).__name__
    return "a fit"


@settings(max_examples=120, deadline=None)
@given(chosen=options)
def test_options_are_those_of_a_fit_or_refused_with_a_sentence(scan, chosen):
    event(ending(scan, chosen, lambda scan, model, given: prepare(scan, model, **given)))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@settings(max_examples=500, deadline=None)
@given(chosen=options)
def test_a_fit_with_any_options_ends_with_a_result_or_a_sentence(scan, chosen):
    event(ending(scan, chosen, few_passes))


def few_passes(scan, model, given):
    few = {"max_passes": min(given["max_passes"], 4), "starts": min(given["starts"] or 1, 2)}
    with np.errstate(all="ignore"):
        result = hd.fit(scan, model, **(given | few))
    json.dumps(result.to_dict(), allow_nan=False)
    assert str(result)


NAMED = {
    "no free parameter under a loss": {"fixed": {"D0": 1e3}, "loss": "soft_l1"},
    "a narrow prior": {"prior": {"D0": [1e3, 1e-6]}, "weighting": "speckle"},
    "windows of a beating": {"model": "beating", "over": "age", "windows": 2},
    "few lags": {"model": "two_component", "min_lag": 20},
    "profiles of windows": {
        "model": "static", "over": "age", "windows": 2, "profile": ["D_offset"],
    },
}  # fmt: skip


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("case", NAMED)
def test_options_that_once_did_not_go_together_fit(scan, case):
    assert ending(scan, {"model": "brownian"} | NAMED[case], few_passes) == "a fit"


right = st.fixed_dictionaries(
    {"model": st.sampled_from(sorted(hd.MODELS))},
    optional={name: st.just(EXAMPLES[name]) for name in NAMES},
)
"""Options that are right one by one, of any model."""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=300, deadline=None)
@given(chosen=right)
def test_options_that_are_right_one_by_one_fit_together_or_are_refused_in_a_sentence(scan, chosen):
    event(ending(scan, chosen, few_passes))
