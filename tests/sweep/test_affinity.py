"""Tasks go to who had them before, and nobody gets much more than a fair share."""

from hypothesis import given
from hypothesis import strategies as st

from homodyne_dask.sweep.distributed_tasks import assign_tasks, weight
from homodyne_dask.sweep.layout import Run

OFF, ON = (0, 1), (2, 2)


def run(*tiles: tuple[int, int]) -> Run:
    return Run(0, (0,), tiles, len(tiles))


def test_who_has_too_much_gives_to_who_has_least():
    tasks = [run(OFF, OFF), run(OFF), run(OFF), run(ON, ON)]
    assert assign_tasks(tasks, {0: "a", 1: "a", 2: "a", 3: "b"}) == {"a": [0], "b": [1, 2, 3]}


@given(
    sizes=st.lists(st.integers(1, 16), min_size=1, max_size=60).map(lambda s: sorted(s)[::-1]),
    names=st.lists(st.sampled_from("abcde"), min_size=60, max_size=60),
)
def test_every_task_is_given_once_and_none_has_more_than_a_share_and_a_task(sizes, names):
    tasks = [run(*[OFF] * size) for size in sizes]
    owners = dict(enumerate(names[: len(tasks)]))
    given_to = assign_tasks(tasks, owners)
    assert sorted(n for mine in given_to.values() for n in mine) == list(range(len(tasks)))
    fair = sum(sizes) / len(set(owners.values()))
    for mine in given_to.values():
        assert sum(weight(tasks[n]) for n in mine) <= 1.05 * fair + max(sizes)
