"""The Grams of a pass, merged as they arrive: few are held, however many tasks there are."""

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from homodyne_dask.kernels.gram import AnyGram, add
from homodyne_dask.sweep.layout import Layout, Run


class ArrivingGrams[G: AnyGram]:
    """The sums of a pass, in the order of arrival merged as `merge_runs` merges them in that of the plan.

    A run of 2^k tiles is a subtree that starts at a multiple of its length; where its neighbour in the
    same larger subtree has come, the two are added. So about one Gram for each thread is held.
    """

    def __init__(self, tasks: Sequence[Run]) -> None:
        self.subtrees: list[tuple[int, int, int]] = []
        """Group, first tile and length of each task."""
        for group, of_group in groupby(tasks, lambda task: task.group):
            first = 0
            for task in of_group:
                self.subtrees.append((group, first, task.length))
                first += task.length
        self.missing = set(range(len(tasks)))
        self.held: dict[tuple[int, int, int], G] = {}
        """Complete subtrees whose neighbour has not come, by group, first tile and length."""

    def add(self, n: int, gram: G) -> None:
        """Take the Gram of the n-th task; each comes exactly once."""
        self.missing.remove(n)
        group, first, length = self.subtrees[n]
        while (neighbour := (group, first ^ length, length)) in self.held:
            gram = add(gram, self.held.pop(neighbour))
            first, length = min(first, neighbour[1]), 2 * length
        self.held[group, first, length] = gram

    def total(self, layout: Layout) -> G:
        """Return the Gram of all selected bins, when those of all tasks are there."""
        assert not self.missing
        bins = sum(map(len, layout.groups))
        some = next(iter(self.held.values()))
        arrays = [np.zeros((bins, *part.shape[1:]), part.dtype) for part in some]
        for group, members in enumerate(layout.groups):
            for array, part in zip(arrays, self._of_group(group), strict=True):
                array[list(members)] = part
        return some._make(arrays)

    def _of_group(self, group: int) -> G:
        subtrees = [self.held[key] for key in sorted(self.held) if key[0] == group]
        total = subtrees.pop()
        while subtrees:
            total = add(subtrees.pop(), total)
        return total
