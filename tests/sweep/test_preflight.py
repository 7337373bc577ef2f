"""The messages about workers that do not meet the requirements; nothing here needs a cluster."""

import pytest

from homodyne_dask.sweep.preflight import Requirements, WorkerInfo, unmet

GB = 10**9
REQUIRED = Requirements(
    {"jaxlib": "0.12.0"}, "/data/A_c2.zarr", "/data/A_c2.zarr/c2/c/0", "d" * 64, 2 * GB
)
WELL = WorkerInfo("worker 7", "n1", 4, 4 * GB, {"jaxlib": "0.12.0"}, 4, 8, 20 * GB, GB, "d" * 64)
worker = WELL._replace
"""A worker with 4 threads that meets all requirements but for these differences."""


def messages(*workers: WorkerInfo) -> list[str]:
    """All messages about some workers."""
    hosts = [[other for other in workers if other.host == worker.host] for worker in workers]
    pairs = zip(workers, hosts, strict=True)
    return [words for worker, on_host in pairs for words in unmet(worker, on_host, REQUIRED)]


def test_there_is_no_message_about_workers_that_meet_the_requirements():
    assert messages(worker(), worker(name="worker 8")) == []


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (worker(versions={"jaxlib": "0.11.0"}), "has jaxlib 0.11.0, but this program has 0.12.0: "),
        (worker(chunk="e" * 64), "on n1 cannot read the store /data/A_c2.zarr (it reads other"),
        (worker(chunk="Permission denied"), "on n1 cannot read the store /data/A_c2.zarr (Perm"),
        (worker(pool=64), "has 4 threads but computes on 64, more than the cores of n1 allow"),
        (worker(limit=GB), "may use 1 GB, but the plan needs 2 GB: give jobs more memory"),
        (worker(available=GB // 2), "needs 2 GB, but n1 with 1 worker has 1.5 GB for them: start"),
    ],
    ids=["version", "other data", "no data", "threads", "limit", "memory"],
)
def test_what_is_wrong_with_a_worker_is_one_sentence_with_its_name(one, words):
    (sentence,) = messages(one, worker(name="worker 8", host="n2"))
    assert sentence.startswith(f"worker 7 {words}")


def test_a_worker_alone_on_its_node_may_compute_on_more_threads_than_it_takes_tasks():
    assert messages(worker(pool=8)) == []
    assert len(messages(worker(pool=8), worker(name="worker 8"))) == 1


def test_workers_of_one_node_share_its_memory():
    beside = [worker(name=f"worker {n}", available=GB) for n in range(3)]
    assert len(messages(*beside)) == 3
    assert messages(*[one._replace(used=2 * GB) for one in beside]) == []
