"""What `make benchmark-peers` measures, its table, and that of large clusters in docs/performance.md."""

import sys

import numpy as np
import pytest

from tests.benchmarks import process
from tests.benchmarks.peers import __main__ as peers
from tests.benchmarks.peers import data
from tests.benchmarks.peers.gallery import Row, table
from tests.benchmarks.scaling import CASES, line
from tests.documents import ROOT

ERRORS = np.abs(np.subtract(data.START, data.TRUTH)) / 3
TRUE = data.Estimate(
    list(data.TRUTH), [0.15, 0.15], [1.0, 1.0], np.diag(ERRORS**2).tolist()
)  # the start is three errors away in each of seven
MIB = 2**20


def test_every_program_has_its_row_also_one_that_failed():
    """One that fitted more parameters than asked is no measure of the others' χ²."""
    still = data.Estimate(list(data.START), [0.2], [1.0])
    freer = data.Estimate(list(data.TRUTH), [0.18, 0.12], [1.0, 1.002])
    rows = [
        Row("ours", "shared", "converged", 4.0, 5.0, 300 * MIB, "0.1.0", "", 2.0, 90.0, TRUE),
        Row("theirs", "shared", "converged", 40.0, 60.0, 750 * MIB, "2.23.3", "", 30.0, 100.0, still),
        Row("freer", "shared", "converged", 2.0, 2.5, 300 * MIB, None, "", 1.0, 89.0, freer),
        Row("broken", "shared", "failed", 1.0, 1.0, 30 * MIB, None, "exit status 1: ValueError: no"),
    ]  # fmt: skip
    assert table(rows) == [
        ("ours", "0.1.0", "converged", "0", "0", "5", "2.0", "300"),
        ("theirs", "2.23.3", "converged", "10", "7.9", "60", "30.0", "750"),
        ("freer", "-", "converged", "-1", "0", "2", "1.0", "300"),
        ("broken", "-", "failed", "-", "-", "1", "-", "30"),
    ]


def test_the_truth_has_a_chisqr_of_one_per_pair():
    case = data.make(3, 60)
    cos = np.cos(2 * np.deg2rad(case.phi))
    truth = data.Estimate(list(data.TRUTH), list(0.15 + 0.03 * cos), list(1 + 0.002 * np.arange(3)))
    assert data.chisqr(case, truth) / case.pairs == pytest.approx(1, abs=5 / case.pairs**0.5)
    assert np.array_equal(case.c2, np.swapaxes(case.c2, 1, 2))


def test_a_process_is_measured_with_its_children_and_stopped_at_its_limit(tmp_path):
    child = "held = bytearray(60_000_000); import time; time.sleep({})"
    parent = "import subprocess, sys; print('here'); subprocess.run([sys.executable, '-c', {!r}])"

    def run(asleep: float, limit: float) -> process.Run:
        code = parent.format(child.format(asleep))
        return process.run([sys.executable, "-c", code], limit, tmp_path / "log")

    ended = run(0.5, 20)
    assert (ended.code, ended.output) == (0, "here\n")
    assert ended.peak > 60e6
    assert 0 < ended.cpu_seconds < 20
    stopped = run(60, 0.5)
    assert stopped.code is None
    assert stopped.seconds < 10


def test_a_program_that_cannot_run_has_a_row_that_says_why(tmp_path, monkeypatch):
    monkeypatch.setitem(peers.PROGRAMS, "absent", ("ours", "absent", ()))
    row = peers.measure("absent", "shared", data.make(2, 5), tmp_path, 20)
    assert row.ended == "failed"
    assert "exit status 1" in row.note
    assert "KeyError" in row.note
    assert row.chisqr is None


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_row_of_the_page_is_what_the_plan_says(case):
    assert line(*case) in (ROOT / "docs/performance.md").read_text().splitlines()
