"""The arithmetic of the group `felt`: CPU seconds of a whole process tree, ratios of runs in turn."""

import json
import subprocess
import sys

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
