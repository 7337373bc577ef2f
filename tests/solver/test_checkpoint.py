"""A fit that was stopped goes on to the same bits, and only the same fit does."""

import hashlib
import json

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import OptionError
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.models import LAMINAR_FLOW
from homodyne_dask.solver.checkpoint import Checkpoint, SavedState, load, previous, save
from tests.result_bits import result_bits
from tests.synthetic import angles, fit_here, measured, started_as_given, store

IDENTITY = {"data": "abc", "bins": [0, 1], "start": [None, 1.5], "gap": 2e6}


def saved_state(seed=0) -> SavedState:
    rng = np.random.default_rng(seed)
    moments = rng.standard_normal((3, 10, 10)) * 10.0 ** rng.integers(-300, 300, (3, 10, 10))
    gram = Gram(moments, np.array([0, 5, 2**40]))
    return SavedState(list(rng.standard_normal(7)), 1e-7, True, gram)


def checkpoint_after(passes=3, best=None) -> Checkpoint:
    numbers = dict.fromkeys(("seconds", "damping", "accepted", "decrement"), 1)
    history = [{"pass": 1, "chisqr": 0.1, "theta": [1.0], **numbers}]
    return Checkpoint(IDENTITY, passes, saved_state(passes), best, history)


def forge(path, change) -> None:
    body = json.loads(path.read_text().split("\n")[1])
    change(body)
    text = json.dumps(body)
    path.write_text(f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}\n")


def same(a: SavedState, b: SavedState) -> bool:
    grams = a.gram.moments.tobytes() == b.gram.moments.tobytes()
    return grams and a.gram.pairs.tolist() == b.gram.pairs.tolist() and a[:3] == b[:3]


@pytest.mark.parametrize("best", [None, saved_state(9)], ids=["none", "one above it"])
def test_writing_and_reading_changes_no_bit(tmp_path, best):
    path = tmp_path / "fit.ckpt"
    written = checkpoint_after(best=best)
    save(path, written)
    read = load(path, IDENTITY)
    assert same(read.state, written.state)
    assert (read.best is None) == (best is None)
    assert best is None or same(read.best, best)
    assert (read.passes, read.history, read.identity) == (3, written.history, IDENTITY)


CORRUPTED = [
    ("cut off", lambda b: b[: len(b) // 2]),
    ("a bit turned", lambda b: b[:900] + bytes([b[900] ^ 1]) + b[901:]),
    ("empty", lambda b: b""),
    ("binary", lambda b: b"\xff\xfe\x00" * 100),
    ("digest only", lambda b: b.split(b"\n")[0]),
]


@pytest.mark.parametrize(("word", "damage"), CORRUPTED, ids=[w for w, _ in CORRUPTED])
def test_a_damaged_file_costs_one_pass_and_never_replaces_the_good_one(tmp_path, word, damage):
    path = tmp_path / "fit.ckpt"
    save(path, checkpoint_after(3))
    for passes in (4, 5):
        save(path, checkpoint_after(passes))
        path.write_bytes(damage(path.read_bytes()))
        assert load(path, IDENTITY).passes == 3


@pytest.mark.parametrize("text", [b"my only copy of chapter 1\n", b'{"a": 1}\n{}\n'], ids=str)
def test_a_file_that_is_no_checkpoint_is_refused_and_kept(tmp_path, text):
    scan, path = store(measured(TRUTH, 30, angles(3)), tmp_path), tmp_path / "thesis.tex"
    path.write_bytes(text)
    with pytest.raises(OptionError, match=r"thesis\.tex exists but is not a checkpoint"):
        hd.fit(scan, LAMINAR_FLOW, gap=2e6, checkpoint=path)
    assert path.read_bytes() == text


def test_two_damaged_files_are_named(tmp_path):
    path = tmp_path / "fit.ckpt"
    save(path, checkpoint_after(3))
    save(path, checkpoint_after(4))
    path.rename(tmp_path / "lost")  # as by a crash between the two renames
    assert load(path, IDENTITY).passes == 3
    (tmp_path / "lost").rename(path)
    for file in (path, previous(path)):
        file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(OptionError, match=r"fit.ckpt and .*fit.ckpt.previous are damaged or"):
        load(path, IDENTITY)
    with pytest.raises(OptionError, match=r"no checkpoint to resume from at .*run without resume"):
        load(tmp_path / "none.ckpt", IDENTITY)


FORGED = [
    ("no identity", lambda body: body.pop("identity")),
    ("moments of another shape", lambda body: body["state"]["gram"].update(shape=[3, 9, 9])),
    ("a state with another field", lambda body: body["state"].update(second=1)),
    ("no number of passes", lambda body: body.pop("passes")),
    ("identity of another kind", lambda body: body.update(identity=[1])),
    ("a count of other bins", lambda body: body["state"]["gram"].update(count="AAAAAAAAAAA=")),
    ("a number whose square is none", lambda body: body["state"]["theta"].__setitem__(0, 1e308)),
    ("a number of 400 digits", lambda body: body["state"].update(damping=10**400)),
    ("text for a history", lambda body: body.update(history=[None])),
    ("no base64", lambda body: body["state"]["gram"].update(moments="?")),
]


@pytest.mark.parametrize(("word", "change"), FORGED, ids=[w for w, _ in FORGED])
def test_a_whole_file_with_other_contents_is_refused(tmp_path, word, change):
    path = tmp_path / "fit.ckpt"
    save(path, checkpoint_after())
    forge(path, change)
    with pytest.raises(OptionError, match=r"intact, but is not a checkpoint"):
        load(path, IDENTITY)


TRUTH = np.array([20000, -0.3, 1000, 2e-3, 0.2, 1e-4, 5])
START = dict(zip(LAMINAR_FLOW.names, [3700, -0.9, 2000, 2.3e-3, -0.32, 7.4e-5, 24], strict=True))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A fit from a poor start, with rejected and non-monotone steps, in one go."""
    folder = tmp_path_factory.mktemp("fit")
    scan = store(measured(TRUTH, 60, angles(5), contrast=0.3), folder)
    options = {"gap": 2e6, "initial": START}
    with started_as_given():
        yield scan, options, fit_here(scan, LAMINAR_FLOW, folder / "whole.ckpt", **options)


@pytest.mark.long
def test_resuming_after_any_pass_gives_the_same_bits_and_passes(fitted, tmp_path):
    scan, options, whole = fitted
    for passes in range(1, whole.passes):
        path = tmp_path / f"after-{passes}.ckpt"
        assert fit_here(scan, LAMINAR_FLOW, path, stop_after=passes, **options) is None
        again = fit_here(scan, LAMINAR_FLOW, path, resume=True, **options)
        assert result_bits(again) == result_bits(whole), passes


@pytest.mark.long
def test_a_fit_that_has_ended_is_not_begun_again(fitted, tmp_path):
    scan, options, whole = fitted
    path = tmp_path / "ended.ckpt"
    fit_here(scan, LAMINAR_FLOW, path, **options)
    again = fit_here(scan, LAMINAR_FLOW, path, resume=True, **options)
    assert result_bits(again) == result_bits(whole)


def test_more_passes_may_be_given_to_a_fit_that_ran_out_of_them(fitted, tmp_path):
    scan, options, whole = fitted
    path = tmp_path / "short.ckpt"
    short = fit_here(scan, LAMINAR_FLOW, path, max_passes=4, **options)
    assert short.outcome.name == "MAX_PASSES"
    more = fit_here(scan, LAMINAR_FLOW, path, resume=True, **options)
    assert more.outcome is whole.outcome
    assert more.chisqr == pytest.approx(whole.chisqr, rel=1e-10)


CHANGES = [
    ("gap", {"gap": 1e6}, "gap_angstrom was 2000000.0, now 1000000.0"),
    ("scaling", {"scaling": "shared"}, "scaling was individual, now shared"),
    ("convention", {"convention": "homodyne"}, "convention was physical, now homodyne"),
    ("bounds", {"bounds": {"alpha": (-1, 1)}}, "lower was"),
    ("min_lag", {"min_lag": 2}, "min_lag was 1, now 2"),
    ("loss", {"loss": "huber"}, "loss was linear, now huber"),
    ("prior", {"prior": {"D0": (20500, 31)}}, "belongs to another fit: prior was"),
]


@pytest.mark.parametrize(("word", "change", "says"), CHANGES, ids=[w for w, *_ in CHANGES])
def test_a_fit_with_other_options_is_not_resumed(fitted, tmp_path, word, change, says):
    scan, options, _ = fitted
    path = tmp_path / "other.ckpt"
    fit_here(scan, LAMINAR_FLOW, path, stop_after=2, **options)
    with pytest.raises(OptionError, match=says):
        fit_here(scan, LAMINAR_FLOW, path, resume=True, **(options | change))


@pytest.mark.parametrize("package", ["jaxlib", "numpy", "homodyne-dask"])
def test_another_version_of_what_computes_is_another_fit(fitted, tmp_path, package):
    scan, options, _ = fitted
    path = tmp_path / "version.ckpt"
    fit_here(scan, LAMINAR_FLOW, path, stop_after=2, **options)
    forge(path, lambda body: body["identity"].update({f"version of {package}": "0.0.1"}))
    with pytest.raises(OptionError, match=rf"version of {package} was 0.0.1, now [1-9]|now 0.1"):
        fit_here(scan, LAMINAR_FLOW, path, resume=True, **options)


@pytest.mark.long
def test_the_same_matrices_with_another_time_step_are_other_data(tmp_path):
    scans = measured(TRUTH, 30, angles(3), contrast=0.3)
    scan, path = store(scans, tmp_path), tmp_path / "fit.ckpt"
    fit_here(scan, LAMINAR_FLOW, path, stop_after=2, gap=2e6)
    scan = store(scans, tmp_path, time=scans.time * 2)
    with pytest.raises(OptionError, match="data was"):
        fit_here(scan, LAMINAR_FLOW, path, resume=True, gap=2e6)
