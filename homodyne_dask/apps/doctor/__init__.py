"""What `homodyne-dask doctor` checks: the machine, the environment and the rate of the kernel."""

from typing import NamedTuple


class Finding(NamedTuple):
    """One check: its name, its result, and the remedy where something is wrong."""

    what: str
    value: str
    advice: str = ""
    """Empty where nothing has to be done."""

    @property
    def ok(self) -> bool:
        """Whether nothing has to be done."""
        return not self.advice

    def __str__(self) -> str:
        text = f"{self.what:<20} {self.value:<58} {'ok' if self.ok else 'to do:'}"
        return f"{text} {self.advice}".rstrip()
