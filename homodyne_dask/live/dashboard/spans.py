"""Spans of passes on the scheduler: Dask keeps every one for ever, of a persistent scheduler too many."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed import Scheduler
    from distributed.spans import Span

MOST = 2000
"""Passes whose spans are kept, the latest ones: about 20 MB."""
NAME = "fit "
"""How the names of a fit's spans begin."""


def keep_latest(scheduler: "Scheduler", most: int = MOST) -> None:
    """Forget the spans of passes that are done, but for the latest ones."""
    held = scheduler.extensions["spans"]
    if len(held.root_spans) <= most:
        return
    ours = [root for root in held.root_spans if root.name[0].startswith(NAME)]
    for root in ours[: max(len(ours) - most, 0)]:
        if root.done:
            held.root_spans.remove(root)
            for one in list(root.traverse_spans()):
                _forget(held, one)


def _forget(held, one: "Span") -> None:
    del held.spans[one.id]
    names = [(held.spans_search_by_name, one.name)]
    for where, key in [*names, *[(held.spans_search_by_tag, tag) for tag in one.name]]:
        where[key].remove(one)
        if not where[key]:
            del where[key]
