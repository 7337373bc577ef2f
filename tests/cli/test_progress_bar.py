"""The progress of a fit on a terminal, and as lines in a file."""

from dataclasses import replace
from io import StringIO

from rich.console import Console

from homodyne_dask.cli import progress_bar
from tests.apps.dashboard.example_progress import ENDED, RUNNING

BEGUN = replace(RUNNING, now=None, done=(), at=1001.0, page="http://127.0.0.1:8787/fit")


def lines(states, terminal=False):
    """What is printed for a sequence of states of a fit."""
    written = StringIO()
    console = Console(
        file=written, force_terminal=terminal, width=150, soft_wrap=True, highlight=False
    )
    with progress_bar.progress_on(console) as show:
        for state in states:
            show(state)
    return written.getvalue()


def test_tiles_rate_time_left_and_chisqr_are_in_one_line():
    assert progress_bar.pass_state(RUNNING) == "12/45 tiles  15 M pairs/s  6 s left  χ²/N 1.01"
    assert progress_bar.pass_state(replace(RUNNING, now=None)) == "χ²/N 1.01"
    assert progress_bar.pass_state(BEGUN) == ""


def test_without_a_terminal_a_long_pass_says_that_it_goes_on_every_half_minute():
    at = [1010.0 + seconds for seconds in (0, 10, 20, 31, 40, 62)]
    now = RUNNING.now
    assert now is not None
    states = [replace(RUNNING, at=t, now=replace(now, last=t)) for t in at]
    printed = lines([replace(RUNNING, now=replace(now, done=0)), *states])
    assert printed.count("pass 2 over all data: 12/45 tiles") == 2


def test_a_terminal_shows_a_bar_that_is_gone_when_the_fit_has_ended():
    printed = lines([BEGUN, RUNNING, ENDED], terminal=True)
    assert "12/45 tiles  15 M pairs/s" in printed
    assert "live: http" not in lines([RUNNING], terminal=True)
    assert printed.rstrip().endswith("\x1b[2K")
