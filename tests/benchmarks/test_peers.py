"""The table of `make benchmark-peers` shows all rows, also those of programs that failed."""

import sys
import time

import numpy as np
import pytest

from tests.benchmarks.peers import __main__ as peers
from tests.benchmarks.peers import data, process
from tests.benchmarks.peers.table import LEGEND, Row, remarks, text

ERRORS = np.abs(np.subtract(data.START, data.TRUTH)) / 3
TRUE = data.Estimate(
    list(data.TRUTH), [0.15, 0.15], [1.0, 1.0], np.diag(ERRORS**2).tolist()
)  # the start is three errors away in each of seven
MIB = 2**20

TABLE = """\
shared scaling: 2 angles x 10 frames, N = 90 pairs

program version ended cpu s ratio process s fit s ratio peak MiB ratio chisqr/N above least distance
homodyne_dask 0.1.0 converged 5.0 1.0 4.0 2.0 1.0 300 1.0 1.00000 0 0
homodyne 2.23.3 converged 60.0 12.0 40.0 30.0 15.0 750 2.5 1.11111 10 7.9
freer - converged 2.5 0.5 2.0 1.0 0.5 300 1.0 0.98889 -1 0
broken - failed 1.0 0.2 1.0 - - 30 0.1 - - -
slow - stopped 2000.0 400.0 1200.0 - - 3000 10.0 - - -

{legend}
homodyne_dask: 8 passes
homodyne: the seven parameters are the initial values
freer: it fitted one contrast and offset per angle, more than required
broken: exit status 1: ValueError: no
slow: stopped at 20 min

                    truth   start  homodyne_dask  homodyne   freer
D0                   2500    4000           2500      4000    2500
alpha                -0.3    -0.1           -0.3      -0.1    -0.3
D_offset              100      50            100        50     100
gamma_dot_t0       0.0002  0.0004         0.0002    0.0004  0.0002
beta                  0.2       0            0.2         0     0.2
gamma_dot_t_offset  1e-05   2e-05          1e-05     2e-05   1e-05
phi0                    5       0              5         0       5"""


def rows() -> list[Row]:
    still = data.Estimate(list(data.START), [0.2], [1.0])
    freer = data.Estimate(list(data.TRUTH), [0.18, 0.12], [1.0, 1.002])
    return [
        Row(
            "homodyne_dask", "shared", "converged", 4.0, 5.0, 300 * MIB, "0.1.0", "8 passes", 2.0, 90.0,
            TRUE,
        ),
        Row("homodyne", "shared", "converged", 40.0, 60.0, 750 * MIB, "2.23.3", "", 30.0, 100.0, still),
        Row("freer", "shared", "converged", 2.0, 2.5, 300 * MIB, None, "", 1.0, 89.0, freer),
        Row("broken", "shared", "failed", 1.0, 1.0, 30 * MIB, None, "exit status 1: ValueError: no"),
        Row("slow", "shared", "stopped", 1200.0, 2000.0, 3000 * MIB, None, "stopped at 20 min"),
    ]  # fmt: skip


def test_every_program_has_its_row_and_ratios_are_to_the_first():
    expected = TABLE.format(legend="\n".join(LEGEND)).splitlines()
    assert [" ".join(line.split()) for line in text(rows(), 2, 10).splitlines()] == [
        " ".join(line.split()) for line in expected
    ]


def test_columns_are_of_one_width():
    lines = text(rows(), 2, 10).splitlines()[2:8]
    assert len({len(line) for line in lines}) == 1
    assert len({line.index(word) for line, word in zip(lines[1:4], ["conv"] * 3, strict=True)}) == 1


def test_individual_scaling_may_have_one_contrast_per_angle():
    row = Row(
        "x", "individual", "converged", 1.0, 1.0, MIB,
        estimate=data.Estimate(list(data.TRUTH), [0.1, 0.2], [1.0, 1.0]),
    )  # fmt: skip
    assert remarks(row) == []


def test_the_truth_has_a_chisqr_of_one_per_pair():
    case = data.make(3, 60)
    cos = np.cos(2 * np.deg2rad(case.phi))
    truth = data.Estimate(list(data.TRUTH), list(0.15 + 0.03 * cos), list(1 + 0.002 * np.arange(3)))
    assert data.chisqr(case, truth) / case.pairs == pytest.approx(1, abs=5 / case.pairs**0.5)
    assert np.array_equal(case.c2, np.swapaxes(case.c2, 1, 2))


def test_a_process_is_measured_with_its_children_and_stopped_at_its_limit(tmp_path):
    child = "held = bytearray(60_000_000); import time; time.sleep({})"
    parent = "import subprocess, sys; print('here'); subprocess.run([sys.executable, '-c', {!r}])"
    command = [sys.executable, "-c", parent.format(child.format(0.5))]
    ended = process.run(command, 20, tmp_path / "log")
    assert ended.code == 0
    assert ended.peak > 60e6
    assert 0 < ended.cpu_seconds < 20
    assert ended.output == "here\n"
    began = time.perf_counter()
    stopped = process.run(
        [sys.executable, "-c", parent.format(child.format(60))], 0.5, tmp_path / "log"
    )
    assert stopped.code is None
    assert time.perf_counter() - began < 10


def test_a_program_that_cannot_run_has_a_row_that_says_why(tmp_path, monkeypatch):
    monkeypatch.setitem(peers.PROGRAMS, "absent", ("ours", "absent", ()))
    row = peers.measure("absent", "shared", data.make(2, 5), tmp_path, 20)
    assert row.ended == "failed"
    assert "exit status 1" in row.note
    assert "No module named" in row.note
    assert row.chisqr is None
