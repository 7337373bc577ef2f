"""The page of `view` as a person uses it, in Chromium: zoom to pairs, bins, cuts, two results."""

import signal
import time

import psutil
import pytest

from homodyne_dask.results.data.findings import Findings, finding
from tests.browser.chromium import NEEDED, browser
from tests.results.made_results import changed, flow_result_of
from tests.run_command import viewing
from tests.synthetic import FLOW, angles, measured, store

pytestmark = NEEDED
HOSTILE = "<img src=x onerror=window.stolen=1>"
FRAMES = 350
MODEL = "Bokeh.documents[0].get_model_by_name('{}')"
READY = "window.Bokeh?.documents[0]?.get_model_by_name('cells')?.data.residual.length"
BOX = """(() => { const box = Bokeh.index.find_one_by_id(%s.id).el.getBoundingClientRect();
  return [box.x, box.y, box.width, box.height] })()"""


@pytest.fixture(scope="module")
def fits(tmp_path_factory):
    """Two fits of 350 frames, in folders and of a store with hostile names."""
    where = tmp_path_factory.mktemp("view")
    made = store(measured(FLOW, FRAMES, angles(3), dt=0.1), where, f"{HOSTILE}A0001_c2")
    fits = [where / f"{HOSTILE}A0001_fit", where / "A0002_fit"]
    for fit in fits:
        fit.mkdir()
        findings = Findings([finding("undetermined", [HOSTILE])])
        changed(flow_result_of(made), findings=findings).to_json(fit / "summary.json")
    return fits


class Page:
    """What the page holds, in the words of Bokeh."""

    def __init__(self, tab) -> None:
        self.tab = tab

    def value(self, name: str, member: str):
        return self.tab.value(f"{MODEL.format(name)}.{member}")

    def until(self, name: str, member: str):
        return self.tab.until(f"{MODEL.format(name)}.{member}")


@pytest.mark.long
def test_a_person_looks_into_two_fits(fits, tmp_path):
    with viewing(*fits) as (program, address):
        with browser(tmp_path) as tab:
            looked_into(tab, address)
        whole = psutil.Process(program.pid)
        assert not whole.children()
        assert not [file.path for file in whole.memory_maps() if "jaxlib" in file.path]
        assert whole.memory_info().rss < 250 * 2**20
        program.send_signal(signal.SIGINT)
        assert program.wait(20) == 0


def looked_into(tab, address: str) -> None:
    page = Page(tab)
    tab.look(1500, "light", 1300)
    tab.open(address)
    tab.until(READY)
    for part in ("data", "model", "residual"):
        assert page.value("cells", f"data.{part}[0].shape") == [FRAMES // 2, FRAMES // 2]
    assert page.value("choice", "options[0][1]") == f"{HOSTILE}A0001_fit"
    assert page.value("data-map", "title.text") == "data: means over 2×2 pairs"
    assert "φ = −90°, bin 1" in page.value("bins", "options[0][1]")
    x, y, width, height = tab.value(BOX % MODEL.format("data-map"))
    assert 400 < width < 510  # three maps fill the window
    assert abs(width - height) < 40
    tab.shot("view")

    for _ in range(8):
        tab.mouse("Wheel", x + width / 2, y + height / 2, deltaX=0, deltaY=-120)
    page.until("data-map", "title.text == 'data: single pairs'")
    page.until("cells", "data.residual[0].shape[0] < 150")
    assert page.value("data-map", "x_range.start") == page.value("model-map", "x_range.start")
    tab.mouse("Moved", x + 0.5 * width, y + 0.4 * height)
    time.sleep(0.5)  # until the value is there, in the picture
    tab.shot("view-pairs")

    age = page.value("cut", "title.text")
    before = page.value("cells", "data.data[0][0]")
    tab.click(x + 0.6 * width, y + 0.4 * height)
    page.until("cut", f"title.text != '{age}'")
    tab.value(f"{MODEL.format('bins')}.value = '1'")
    page.until("cells", f"data.data[0][0] != {before}")
    tab.value(f"{MODEL.format('choice')}.value = '1'")
    page.until("choice", "value == '1'")
    assert page.value("bins", "value") == "1"
    assert page.value("curve", "data.x.length") > 0

    tab.shot("view-bin")
    assert tab.value("window.stolen") is None
    assert not tab.complaints
