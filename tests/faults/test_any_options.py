"""Whatever options a configuration holds: a fit, or a sentence that says what is wrong with them."""

import json
import random
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
COMBINATIONS = 300
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
    optional={
        name: st.one_of(st.just(EXAMPLES[name]), anything)
        for name in sorted(set(EXAMPLES) - ELSEWHERE - FILES - {"model"})
    },
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
    """A fit that is cut short, all that is made of its result."""
    few = {"max_passes": min(given["max_passes"], 4), "starts": min(given["starts"] or 1, 2)}
    with np.errstate(all="ignore"):
        result = hd.fit(scan, model, **(given | few))
    json.dumps(result.to_dict(), allow_nan=False)
    assert str(result)


def combined(rng: random.Random) -> dict:
    """Options that are right one by one, of any model."""
    model = rng.choice(list(hd.MODELS))
    parameters = hd.MODELS[model].parameters
    low, high = (
        {p.name: float(np.clip(p.bounds[end], -1e4, 1e4)) for p in parameters} for end in (0, 1)
    )
    inside = {name: rng.uniform(low[name], high[name]) for name in low}
    some = rng.sample(list(low), rng.randint(1, min(2, len(low))))
    free = [name for name in low if name not in some]
    width = 10.0 ** rng.uniform(-6, 0)
    drawn = {
        "initial": {name: inside[name] for name in some},
        "fixed": {name: rng.choice([inside[name], 0.5 * inside[name]]) for name in some},
        "bounds": {name: [min(low[name], inside[name]), high[name]] for name in free[:1]},
        "prior": {name: [inside[name], width * (abs(inside[name]) + 1)] for name in free[-1:]},
        "tie": {free[0]: f"0.5*{free[-1]}"} if len(free) > 1 else None,
        "min_lag": rng.choice([1, 2, 5, 20, 28]),
        "weighting": "speckle",
        "loss": rng.choice(["huber", "soft_l1", "cauchy"]),
        "loss_scale": rng.choice([0.5, 5.0]),
        "scaling": rng.choice(["shared", "fourier1", "rings", "fixed"]),
        "contrast": {rng.choice(["bounds", "prior"]): [0.05, 0.5]},
        "offset": {rng.choice(["bounds", "prior"]): [0.9, 1.1]},
        "convention": "homodyne",
        "rates": rng.choice(["spline", "J=spline"]),
        "knots": rng.choice([5, 8]),
        "precision": "mixed",
        "memory": "stream",
        "friedel": "off",
        "profile": rng.sample(list(low), 1),
        "over": rng.choice(["age", "q", "label", "angle"]),
        "per": {rng.choice(["ring", "angle", "label"]): rng.sample([*low, "contrast"], 1)},
        "windows": rng.choice([2, 3]),
        "phi": [-60, 60],
        "frames": [3, 27],
        "on_bad_tile": "skip",
    }
    chosen = rng.sample(list(drawn), rng.randint(1, 5))
    return {"model": model} | {name: drawn[name] for name in chosen if drawn[name]}


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


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_options_that_are_right_one_by_one_fit_together_or_are_refused_in_a_sentence(scan):
    failed = {}
    for n in range(COMBINATIONS):
        chosen = combined(random.Random(n))
        try:
            ending(scan, chosen, few_passes)
        except Exception as e:
            failed[n] = f"{type(e).__name__}: {e}"[:200], chosen
    assert not failed
