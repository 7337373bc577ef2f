"""The page /fit on a scheduler that knows nothing of it before a fit begins, read over HTTP."""

import time
from http.client import HTTPConnection
from urllib.request import urlopen

import pytest
from distributed import Client, LocalCluster

import homodyne_dask as hd
from homodyne_dask.apps.live.event_messages import TOPIC
from homodyne_dask.apps.live.shown_fits import FitPage
from tests.html_pages import LARGE, ParsedPage, answer_to
from tests.synthetic import CREEP, measured, store

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def cluster():
    """A scheduler as Dask makes it, with workers in this process."""
    with LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, dashboard_address="127.0.0.1:0"
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def fitted(cluster, tmp_path_factory):
    """The address of the dashboard, the client and the result after a fit."""
    scan = store(measured(CREEP, 60, [0.0, 45.0], dt=0.1), tmp_path_factory.mktemp("p"))
    with Client(cluster) as client:
        result = hd.fit(scan, hd.STATIC, client=client)
        address = f"http://127.0.0.1:{cluster.scheduler.http_server.port}/"
        until = time.monotonic() + 30
        while "still running" in get(address, "fit-now"):  # the last event may be on its way
            assert time.monotonic() < until
        yield address, client, result


def get(address: str, path: str) -> str:
    with urlopen(address + path) as answer:
        return answer.read().decode()


@pytest.mark.long
def test_the_page_shows_how_the_fit_ended(fitted):
    address, _, result = fitted
    page = ParsedPage(get(address, "fit"))
    assert result.outcome.value in page.text
    assert len(page.all("table")) == 2
    assert ParsedPage(get(address, "fit-now")).lines


def test_the_same_events_are_those_of_a_dask_topic(fitted):
    _, client, result = fitted
    events = [event for _, event in client.get_events(TOPIC)]
    told = [event["what"] for event in events]
    assert told[0] == "FitPlanned"
    assert told[-1] == "FitEnded"
    assert told.count("PassEnded") == result.passes
    places = [n for n, what in enumerate(told) if what in ("PassStarted", "PassEnded")]
    assert told[places[0]] == "PassStarted"


def test_tasks_have_names_and_their_time_is_told_apart(fitted, cluster):
    scheduler = cluster.scheduler
    assert "gram" in scheduler.task_prefixes
    until = time.monotonic() + 30
    while not {"read", "gram"} <= told(scheduler):  # a worker tells with its heartbeat
        assert time.monotonic() < until, told(scheduler)
        time.sleep(0.05)


def told(scheduler):
    measured = list(scheduler.cumulative_worker_metrics)
    return {key[2] for key in measured if key[:2] == ("execute", "gram")}


@pytest.mark.parametrize("how", LARGE)
def test_a_large_body_is_refused_before_it_is_there(fitted, how):
    port = int(fitted[0].rpartition(":")[2].strip("/"))
    assert answer_to(port, "/fit", how) == b"HTTP/1.1 400 Bad Request"


def test_connections_of_viewers_end_with_the_scheduler():
    alone = {"n_workers": 0, "processes": False, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(**alone) as cluster, Client(cluster) as client:
        client.register_plugin(FitPage())
        viewer = HTTPConnection("127.0.0.1", cluster.scheduler.http_server.port, timeout=10)
        viewer.request("GET", "/health")
        assert viewer.getresponse().read()
    assert viewer.sock
    assert viewer.sock.recv(1) == b""
    viewer.close()


@pytest.mark.long
def test_small_fits_that_workers_made_are_shown_when_they_have_ended(cluster, tmp_path):
    """The page said for ever that there was no fit yet."""
    scan = store(measured(CREEP, 40, [0.0, 45.0], dt=0.1), tmp_path)
    with Client(cluster) as client:
        hd.fit_each(scan, hd.STATIC, over="angle", client=client)
        address, until = f"http://127.0.0.1:{cluster.scheduler.http_server.port}/", 30
        while "No fit yet" in get(address, "fit-now"):  # the last event may be on its way
            time.sleep(0.1)
            assert (until := until - 0.1) > 0
