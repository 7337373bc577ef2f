"""Every command and option that a finding advises is read by the program, and its fits are possible."""

import re
import shlex
from dataclasses import make_dataclass
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import xarray

import homodyne_dask as hd
from homodyne_dask.assessment import result_findings as checks
from homodyne_dask.assessment.decay_test import Signal
from homodyne_dask.assessment.flow_profile import has_profile
from homodyne_dask.assessment.speckle_errors import OffsetDeviation
from homodyne_dask.cli import run_fits
from homodyne_dask.cli.program import main
from homodyne_dask.cli.shared_options import selected
from homodyne_dask.fitting import choose_model
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.fitting.series import many_fits as run_many
from homodyne_dask.fitting.series.global_end import disagreement
from homodyne_dask.models import model_named
from homodyne_dask.models.user_defined import USER_DEFINED
from homodyne_dask.results.data.findings import CATALOGUE
from homodyne_dask.results.data.fit_result import Alternative, ModelCheck, PowerOfQ
from homodyne_dask.solver.covariance import Doubt

FRAMES = 24
STORES = {
    "rings.zarr": {"q": np.repeat([0.004, 0.006, 0.008], 4), "phi": np.tile([0, 45, 90, 225], 3)},
    "it's one.zarr": {"q": [0.004], "phi": [np.nan]},
    "-dash.zarr": {"q": [np.nan] * 3, "phi": [10.0, 20.0, 25.0]},
    "scans.zarr": {"q": [0.004] * 3, "phi": [10.0, 20.0, 25.0]},
}
TYPED = {
    "rings and angles": "rings.zarr --model brownian",
    "bins and frames": "rings.zarr --model static --label 1,2,3,5 --frames 2:22 --exclude-frames 5:7",
    "one bin": "rings.zarr --model stretched --label 5",
    "angles without 0": "rings.zarr --model brownian --phi 40:240 --exclude-label 3",
    "no angle": '"it\'s one.zarr" --model power_law',
    "no q": "./-dash.zarr --model static",
    "homodyne": "rings.zarr --model laminar_flow --gap '200 um' --convention homodyne",
    "free rates": "rings.zarr --model laminar_flow_free --gap '2123456.7 A' --smoothness J=10",
    "a tied sum": "rings.zarr --model 'static + brownian' --tie 'D0_2 = 3 * D0_1'",
    "fixed scaling": "rings.zarr --model static --scaling fixed --contrast 0.2 --offset 1",
    "a series": "rings.zarr --model static --scaling fourier1 --fixed alpha=0",
    "a loss": "rings.zarr --model cumulant --loss huber",
    "bounds": "rings.zarr --model static --bounds alpha=-1:1 --offset prior=1:0.1 --min-lag 2",
    "beats": "rings.zarr --model two_component",
    "a model of one's own": "rings.zarr --model mine",
    "repeats": "scans.zarr --model static",
    "one of the repeats": "scans.zarr --model brownian --scan 2 --label 1,2",
    "a table of g2": "curves.zarr --model brownian",
    "a table without errors": "plain.zarr --model brownian",
    "two of the repeats": "scans.zarr --model brownian --scan 1 --scan 3",
    "a gel": "rings.zarr --model 'frozen + brownian' --offset prior=1:0.001",
}
"""What a user typed."""
State = make_dataclass("State", ["theta", "reduced", "slow_steps", "outcome"])
SMOOTH = ("rate", "stretching", "lag", "power_of_q", "shear", "contrast_drift")
PLACES = dict.fromkeys(SMOOTH, ())
PLACES |= dict.fromkeys(("first_lag", "profile", "beam"), ())
PLACES |= {"jump": (12,), "frames": (8, 9), "bin": (2,), "smoothness": ("J",)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("stores"), np.random.default_rng(1)
    for name, bins in STORES.items():
        files = []
        for n in range(3 if name == "scans.zarr" else 1):
            c2 = 1 + 0.1 * rng.normal(size=(len(bins["q"]), FRAMES, FRAMES))
            files.append(folder / f"{n}.npz")
            np.savez(files[-1], c2=c2 + c2.transpose(0, 2, 1) - 1, dt=0.1, **bins)
        hd.ingest(files if len(files) > 1 else files[0], folder / name, sigma=0.1)
    lag = 0.1 * np.arange(1, 30)
    curves = np.stack([lag, *(1 + 0.2 * np.exp(-lag * n) for n in (1, 2, 3))], axis=1)
    head = "lag (s)," + ",".join(f"g2 q={q} 1/A" for q in (0.004, 0.006, 0.008))
    np.savetxt(folder / "curves.csv", curves, delimiter=",", header=head, comments="")
    hd.ingest(folder / "curves.csv", folder / "curves.zarr", sigma=0.01)
    hd.ingest(folder / "curves.csv", folder / "plain.zarr")
    return folder


def ends_of(request):
    search, k, p = request.search, len(request.scan.bins), len(request.search.names)
    low, high = (
        np.where(np.isfinite(bounds), bounds, 1.0) for bounds in (search.lower, search.upper)
    )
    ratio, signals = np.full((k, 2), 0.01), (None, Signal(0.01, 0.01, 4.0, 2.0, 4.0))
    alternatives = None, Alternative("lag", (), 0.1, 0.1, 1e-9)
    power = None if np.isnan(request.scan.q).any() else PowerOfQ(1.5, 0.01, 50.0, 1e-9)
    errors = SimpleNamespace(
        robust=np.eye(p), naive=np.eye(p), dof=np.full(p, 9.0), withheld=np.ones(p, bool), few=None,
        method="cluster-robust", of_few=lambda names: [], scaling_robust=ratio, scaling_naive=ratio,
        determined_by_all=None,
        doubts=[Doubt("hidden-by-rounding", search.names[:1])],
    )  # fmt: skip
    alternatives = alternatives[: 1 if request.scan.is_table else 2]  # tables are not tested
    every = product((low, high), (0.3, 0.9, 2.0), signals, alternatives)
    for theta, contrast, signal, alternative in every:
        reduced = SimpleNamespace(
            count=np.ones(k), undetermined=np.zeros(k, bool), contrast=np.full(k, contrast), finite=True,
            offset=np.full(k, 1.1), columns=np.ones((k, 2)), at_bound=np.zeros((k, 2), bool),
            redchi=lambda free: 40.0, freedom=lambda free: 40,
            variance=lambda free: 1.0, decrement_rounding=lambda noise: 1.0, rounded_as_float64=None,
        )  # fmt: skip
        assessment = SimpleNamespace(
            check=alternative
            and ModelCheck(9, 4.0, 1, 6.0, "", (0, 1), (0, 1), 0.1, 0.1, "lag", 0, 0, alternative),
            power_of_q=power, at_bound=search.free, alone=True, decay=True,
            noise=SimpleNamespace(
                offset=OffsetDeviation(contrast / 9, 0.0),
                objection=None,
                distance=0.0,
                shared=SimpleNamespace(shares=()),
            ),
            signal=signal, errors=errors,
        )  # fmt: skip
        state = State(theta, reduced, 99 * (contrast > 1), None)
        end = checks.AssessedFit(request, state, assessment)
        vary = {"D0", "alpha", "D_offset"} <= set(search.names) and search.free.all()
        rates = {"J": (1.0, 0.1, "Å²/s")} if vary else {}
        vars(end).update(constant=rates, stderr=np.full(p, 1e30), inseparable=[])
        yield end


def findings_of(request):
    if not request.scan.is_table:
        yield from of_misfits(request)
    made = (checks.misfit, checks._undetermined, checks._same_at_all_q, checks._at_bounds, checks._withheld,
            checks._bins, checks._few_bins, checks._model_and_data)  # fmt: skip
    for end, check in product(ends_of(request), made):
        yield from check(end)
    if len(set(request.scan.scan_number)) > 1:
        of_scans = {"stderr": (("scan", "param"), [[1.0], [1.0]]), "param": ["D0"], "scan": [1, 2]}
        differ, of_scans = SimpleNamespace(p=1e-9), xarray.Dataset(of_scans)
        fit = {
            "each": of_scans,
            "parameters": of_scans.isel(scan=0),
            "agreement_in": lambda *_, **__: differ,
        }
        yield from disagreement(["D0"], SimpleNamespace(**fit))
        yield from disagreement(["D0"], SimpleNamespace(**fit), "angle")


def of_misfits(request):
    contrast = SimpleNamespace(contrast=0.1 + 20 * request.scan.q)
    errors = SimpleNamespace(scaling_robust=np.full((len(request.scan.bins), 2), 1e-4))
    of_contrast = SimpleNamespace(reduced=contrast), SimpleNamespace(errors=errors, alone=False)
    end = checks.AssessedFit(request, *of_contrast)
    yield from checks._contrast(end)
    yield from checks._other_flow(end)
    several, rings = len(request.scan.bins) > 1, len(set(request.scan.q[request.scan.q > 0])) > 1
    skipped = {"bin": several, "shear": several, "power_of_q": rings}
    skipped["profile"] = has_profile(request.problem)
    skipped["smoothness"] = request.config["smoothness"]
    for (name, place), size in product(PLACES.items(), (-0.1, 0.1)):
        if skipped.get(name, True):
            yield checks._of_alternative(end, Alternative(name, place, size, 0.1, 1e-9))
    if request.scan.has_repeats:
        yield checks._of_alternative(end, Alternative("bin", (2, 2), 0.1, 0.1, 1e-9))
    for depends_on in ("age", "lag") + ("bin",) * several + ("q",) * rings:
        yield checks._of_pattern(end, depends_on)


@pytest.fixture
def typed(folder, monkeypatch):
    """A function that returns the fit of what was typed; commands end where a fit would begin."""

    def prepared(jobs, model, *_, **__):
        for job in jobs:
            prepare(job.scan(), model, **job.options).require_given()
        raise SystemExit(0)

    def request_of(words):
        with monkeypatch.context() as only:
            only.setattr(run_fits, "run_fits", lambda config, _: configs.append(config) or 0)
            with pytest.raises(SystemExit):
                main.main(["fit", *shlex.split(words)])
        scan = selected(configs[-1], configs[-1].data[0])
        return prepare(scan, model_named(configs[-1].model), **configs[-1].values())

    configs = []
    monkeypatch.chdir(folder)
    rate = [hd.Parameter("rate", "1/s", (0.1, 9.0))]
    mine = hd.separable(
        lambda theta, t1, t2, bin: 1 / (1 + theta[0] * (t2 - t1)), rate, name="mine"
    )
    monkeypatch.setitem(USER_DEFINED, "mine", mine)
    alike = SimpleNamespace(point=lambda *_: None, f_at=lambda *_: [np.arange(3)] * 2)
    monkeypatch.setattr(checks, "backend_of", lambda _: alike)
    determined = SimpleNamespace(undetermined=[["D0"]], determined=[])
    monkeypatch.setattr(checks, "determined_at", lambda *_: determined)
    monkeypatch.setattr(run_fits, "fit_job", lambda job, model, *_, **__: prepared([job], model))
    monkeypatch.setattr(run_many, "run_many", prepared)
    monkeypatch.setattr(run_fits, "fit_subsets_together", lambda *_: prepared([], None))
    monkeypatch.setattr(choose_model, "fit", lambda *_, **__: prepared([], None))
    return request_of


def test_a_variance_at_0_is_no_bound_that_keeps_a_fit_from_the_data(typed):
    ends = [*ends_of(typed("rings.zarr --model cumulant"))]
    stopped = {float(end.theta[1]): checks._at_default_bounds(end) for end in ends}
    assert stopped == {0.0: ["rate"], 2.0: ["rate", "polydispersity"]}


@pytest.mark.parametrize("word", TYPED)
def test_what_is_advised_can_be_typed(word, typed, capsys):
    failed = {}
    for advice in {finding.advice for finding in findings_of(typed(TYPED[word])) if finding.advice}:
        command = advice if advice.startswith("homodyne") else f"- fit {TYPED[word]} {advice}"
        with pytest.raises(SystemExit) as end:
            main.main(shlex.split(command)[1:])
        if end.value.code:
            failed[command] = capsys.readouterr().err
        assert not re.search(r"\bN\b|\.\.\.|^homodyne.*mine", advice)
    assert not failed


def test_all_codes_with_advice_are_tried(typed):
    findings = [finding for words in TYPED.values() for finding in findings_of(typed(words))]
    tried = {finding.code for finding in findings if finding.advice}
    assert tried >= {code for code, entry in CATALOGUE.items() if "{advice" in entry.template}
