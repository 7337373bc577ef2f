"""A result shows itself as text, HTML and figures, and loads for that only what it needs."""

import pickle
import subprocess
import sys

import pytest

from homodyne_dask.results.data.fit_rows import fit_row
from homodyne_dask.results.data.series import FitSeries
from tests.results.made_results import flow_result

PROGRAM = """
import pickle, sys
shown = pickle.load(sys.stdin.buffer)
heavy = ("matplotlib", "jinja2", "homodyne_dask.document.html")
print(shown)
assert not [name for name in heavy if name in sys.modules]
assert shown._repr_html_().startswith("<div")
assert callable(shown.plot) or callable(shown.plot.rates)
assert "matplotlib.pyplot" not in sys.modules
"""


@pytest.mark.parametrize("over", [None, "q"])
def test_an_unpickled_result_prints_itself_in_a_bare_process_without_html_or_matplotlib(over):
    result = flow_result()
    entry = fit_row("q 0.0054", None, result, "", {"q": 0.0054, "age": 30.0})
    shown = result if over is None else FitSeries(over, (entry,))
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=pickle.dumps(shown), capture_output=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr.decode()
    assert ran.stdout.decode() == f"{shown}\n"
