"""The scheduler of local workers loads Dask's dashboard, and Bokeh, when a browser asks for it."""

import subprocess
import sys

import pytest

SCRIPT = """
import re
import sys
from urllib.error import HTTPError
from urllib.request import urlopen

from homodyne_dask.cluster.local import local_cluster


def page(name):
    try:
        with urlopen(f"{base}/{name}") as answer:
            return answer.read().decode()
    except HTTPError as e:
        return str(e.code)


def tabs():
    return re.findall(r'href="(\\w+)"', re.findall(r"<nav.*?</nav>", page("fit"), re.DOTALL)[0])


with local_cluster(1, 1) as client:
    base = client.dashboard_link.removesuffix("/status")
    print(page("health"), tabs(), "bokeh" in sys.modules)
    status = page("status")
    print("Bokeh" in status, re.findall(r"href=.?(\\w+)", status).count("fit"), "bokeh" in sys.modules)
    print(tabs()[:2], tabs()[-1], page("nonsense"))
"""


@pytest.mark.cluster
def test_the_dashboard_is_loaded_by_its_first_request():
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=200
    )
    assert ran.stdout.splitlines() == [
        "ok ['status', 'fit'] False",
        "True 1 True",
        "['status', 'workers'] fit 404",
    ], ran.stderr
