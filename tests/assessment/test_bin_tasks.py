"""The noise of bins: the same bits in this process, on any number of workers, and with one killed."""

import pickle
from typing import NamedTuple

import numpy as np
import pytest

from homodyne_dask.assessment import assess as assessed
from homodyne_dask.assessment import speckle_errors as bin_tasks
from homodyne_dask.cluster import local as cluster
from homodyne_dask.errors import ClusterError
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.store.scan import open_dataset
from homodyne_dask.sweep.sweep import sweep_of
from tests.faults.local_workers import workers
from tests.ingest_files import repeats
from tests.synthetic import minimized, plan_here

N, Q = 60, 0.0054


class Case(NamedTuple):
    """Bins, scans, share of unknown pairs, and whether workers may compute the noise of bins."""

    bins: int
    scans: int = 1
    unknown: float = 0.0
    on_workers: bool = True


CASES = {
    "several bins": Case(5),
    "40 bins": Case(40),
    "repeats": Case(3, scans=3),
    "one bin": Case(1, on_workers=False),
    "averages that are not stored": Case(5, unknown=0.05, on_workers=False),
}


def ended(case, folder):
    rng, scans, lag = np.random.default_rng(1), [], np.abs(np.subtract.outer(*[np.arange(N)] * 2))
    for _ in range(case.scans):
        f = np.exp(-(Q**2) * 2e3 * lag)
        # of one contrast they would share their noise, and be one task
        contrast = np.linspace(0.1, 0.9, case.bins)[:, None, None]
        c2 = 1 + contrast * f + rng.normal(0, 0.02, (case.bins, N, N))
        c2[rng.random(c2.shape) < case.unknown] = np.nan
        scans.append(c2)
    phi = np.arange(case.bins) * 170 / case.bins
    scan = open_dataset(repeats(folder, scans, q=Q, phi=phi, dt=1.0, sigma=0.02))
    request = prepare(scan, "brownian")
    plan = plan_here(request)
    sweep = sweep_of(plan, scan.selection, request.problem, None)
    state = minimized(request, sweep)
    return request, state, plan


def bits(value):
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, dict):
        return [(key, bits(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [bits(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return [bits(getattr(value, name)) for name in value.__dataclass_fields__]
    return value


def assessment(request, state, plan, client=None):
    said, sweep = [], sweep_of(plan, request.scan.selection, request.problem, None)
    sweep.client = client
    made = assessed.assess(request, state, sweep, doing=said.append)
    assert made.noise is not None
    return bits([made.noise, made.errors, made.gain, made.check]), said


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(bin_tasks, "TASK_SECONDS", 0.0)
    monkeypatch.setattr(bin_tasks, "MIN_SECONDS", 0.0)
    monkeypatch.setattr(bin_tasks, "PROGRESS_INTERVAL", -1.0)


@pytest.fixture(scope="module")
def fits(tmp_path_factory):
    return {words: ended(case, tmp_path_factory.mktemp("bins")) for words, case in CASES.items()}


@pytest.mark.long
def test_a_cluster_that_is_lost_after_the_last_pass_does_not_cost_the_result(fits, monkeypatch):
    def lost(*_):
        raise ClusterError("the scheduler is lost")

    monkeypatch.setattr(bin_tasks.BinExecutor, "_on_workers", lost)
    fit = fits["several bins"]
    assert assessment(*fit, client=object()) == assessment(*fit)


@pytest.mark.cluster
@pytest.mark.long(whole=True)
@pytest.mark.parametrize(("number", "task_seconds"), [(2, 0.0), (1, 0.25), (3, 0.05)])
def test_any_number_of_workers_gives_the_same_bits(fits, number, task_seconds, monkeypatch):
    sent, plain = [], bin_tasks.BinExecutor._on_workers
    monkeypatch.setattr(bin_tasks, "TASK_SECONDS", task_seconds)
    monkeypatch.setattr(
        bin_tasks.BinExecutor,
        "_on_workers",
        lambda *arguments: sent.append(len(arguments[2])) or plain(*arguments),
    )
    with workers(number) as client:
        for words, case in CASES.items():
            sent.clear()
            (on_workers, said), (in_process, words_in_process) = (
                assessment(*fits[words], workers) for workers in (client, None)
            )
            bins = case.bins * case.scans
            assert (on_workers, said[-1]) == (in_process, words_in_process[-1]), words
            assert (said[0], said[-1]) == ("speckle noise", f"speckle noise: {bins} of {bins} bins")
            assert bool(sent) is case.on_workers, words


@pytest.mark.cluster
@pytest.mark.long
def test_workers_started_for_much_work_give_the_same_bits(fits, monkeypatch):
    (in_process, _), began = assessment(*fits["40 bins"]), []
    plain = cluster.local_cluster
    monkeypatch.setattr(bin_tasks, "START_SECONDS", 0.0)
    monkeypatch.setattr(cluster, "local_cluster", lambda: began.append(True) or plain())
    on_workers, _ = assessment(*fits["40 bins"])
    assert on_workers == in_process
    assert began


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_bins_of_a_killed_worker_are_computed_again(fits):
    with workers(2, "noise-") as client:
        on_workers, _ = assessment(*fits["40 bins"], client)
    assert on_workers == assessment(*fits["40 bins"])[0]


@pytest.mark.long
def test_little_work_stays_in_this_process(fits, monkeypatch):
    monkeypatch.setattr(bin_tasks, "MIN_SECONDS", 60.0)
    client = object()  # nothing asks it for anything
    assert assessment(*fits["several bins"], client) == assessment(*fits["several bins"])


@pytest.mark.long
def test_what_a_task_returns_is_small(fits):
    request, state, plan = fits["40 bins"]
    sweep = sweep_of(plan, request.scan.selection, request.problem, None)
    noise = assessed.assess(request, state, sweep).noise
    assert noise is not None
    assert max(len(pickle.dumps(noise_of_bin)) for noise_of_bin in noise.bins.values()) < 200_000
