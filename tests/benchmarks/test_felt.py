"""The arithmetic of the group `felt`: CPU seconds of a whole process tree, ratios of runs in turn."""

import json
import subprocess
import sys

import pytest

from tests.benchmarks import felt

BURN = "import time; began = time.process_time()\nwhile time.process_time() < began + {}: pass"
ORPHAN = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {BURN.format(0.3)!r}])"


def measured(pattern: str, *codes: str) -> felt.Costs:
    programs = [felt.python(code) for code in codes]
    words = [sys.executable, "-I", str(felt.TREE), pattern, json.dumps(programs)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_cpu_seconds_are_those_of_all_processes_also_of_orphans():
    assert measured("", BURN.format(0.3), ORPHAN)["CPU s"] >= 0.6


def test_the_first_line_is_that_for_which_a_user_waits():
    """The program sleeps 2 s after the line: a reader that is woken late sees it before the end."""
    said = (
        "import time; print('start'); time.sleep(0.3); print('pass 1', flush=True); time.sleep(2)"
    )
    cost = measured("^pass", said)
    assert 0.3 < cost["first s"] < cost["wall s"] - 0.3


def test_a_program_that_fails_gives_no_cost():
    with pytest.raises(subprocess.CalledProcessError):
        measured("", "raise SystemExit(2)")


def test_ratios_are_of_runs_beside_each_other():
    """The machine is twice as slow in each later pair: ratios do not notice."""
    pairs = [({"CPU s": 3.0 * slow}, {"CPU s": 4.0 * slow}) for slow in (1, 2, 4, 8)]
    assert felt.ratios(pairs) == {"CPU s": (0.75, 0.75, 0.75)}
    uneven = [({"CPU s": this}, {"CPU s": 10.0}) for this in (5.0, 6.0, 7.0, 8.0, 9.0)]
    assert felt.ratios(uneven)["CPU s"] == pytest.approx((0.7, 0.6, 0.8))
    assert felt.medians([this for this, _ in uneven]) == {"CPU s": 7.0}


def test_a_row_runs_the_code_of_the_checkout_that_is_compared(tmp_path):
    package = tmp_path / "checkout" / "homodyne_dask" / "cli"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "__main__.py").write_text("raise SystemExit('another checkout')")
    with pytest.raises(SystemExit, match="another checkout"):
        felt.cost(felt.Felt([felt.command("--version")]), tmp_path, tmp_path / "checkout")
