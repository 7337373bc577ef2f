"""What failed but may pass by itself, as a full disk: said once, tried again, and said when it is over."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from homodyne_dask.apps.watch.scan_fits import may_pass
from homodyne_dask.cli.exit_status import error_sentence
from homodyne_dask.cli.printing import echo
from homodyne_dask.errors import in_line

RETRY_SECONDS = 10.0
"""Seconds until what failed, but may pass, is tried again."""


def _without_numbers(sentence: str) -> str:
    """Return what of a sentence stays from try to try: free room and classes of errors change."""
    return re.sub(r"\([^()]*\)|[\d.]+", "", sentence)


def say(text: str) -> None:
    """Print a line on what happens in a watched folder."""
    echo(in_line(text), err=True)


@dataclass
class Retries:
    """What is waited for, by name: a file, or a thing that all files need."""

    endless: bool
    """False: what cannot be done now is an error."""
    interval: float
    """Seconds until it is tried again."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why, by name."""
    not_before: dict[str, float] = field(default_factory=dict)
    changed: bool = True
    """Since the page was written."""

    def postpone(self, what: str, error: Exception) -> None:
        """Note, and say once, that something must pass first."""
        sentence = error_sentence(error, then="")
        if _without_numbers(self.reasons.get(what, "")) != _without_numbers(sentence):
            say(f"waiting for {what}, retrying every {self.interval:g} s: {sentence}")
            self.changed = True
        self.reasons[what] = sentence
        self.not_before[what] = time.monotonic() + self.interval

    def too_early(self, *whats: str) -> bool:
        """Return whether it is too early to try one of some things again."""
        return max(self.not_before.get(what, 0.0) for what in whats) > time.monotonic()

    def resolved(self, *whats: str) -> None:
        """Note, and say of what was waited for, that it is there."""
        for what in whats:
            self.not_before.pop(what, None)
            if self.reasons.pop(what, None) is not None:
                say(f"no longer waiting for {what}")
                self.changed = True

    def attempt(self, what: str, action: Callable[[], None], any_error: bool = False) -> bool:
        """Return whether something succeeds that may have to wait; raises what does not pass.

        any_error: go on after any failure.
        """
        try:
            action()
        except Exception as e:
            if not (self.endless and (any_error or may_pass(e))):
                raise
            self.postpone(what, e)
            return False
        self.resolved(what)
        return True

    def lines(self) -> list[str]:
        """Return a line for each thing that is waited for."""
        return [f"waiting for {what}: {why}" for what, why in self.reasons.items()]
