"""The cost of a pass: what was computed and read."""

from typing import NamedTuple


class Cost(NamedTuple):
    """The work of a pass or of a part of it; blocks where f has decayed to zero cost nothing."""

    computed: int = 0
    """Sub-blocks computed, of all bins together."""
    sub_blocks: int = 0
    read: int = 0
    """Blocks whose data were needed."""
    blocks: int = 0
    reading: float = 0.0
    """Seconds of a thread to read and decode the data of its blocks."""

    def plus(self, other: "Cost") -> "Cost":
        """Return the cost of both."""
        return Cost(
            self.computed + other.computed,
            self.sub_blocks + other.sub_blocks,
            self.read + other.read,
            self.blocks + other.blocks,
            self.reading + other.reading,
        )


NO_COST = Cost()
