"""What this jaxlib's XLA knows, and what it does to a process that is given some flags."""

import difflib
import json
import os
import re
import subprocess
import sys
from functools import cache
from typing import NamedTuple

from homodyne_dask.cli.doctor.child import last_word, plain_environment

_START = "import jax; jax.jit(lambda x: x + 1)(1.0).block_until_ready()"
_LIST = "import jax, json; print(json.dumps(sorted(jax.config.values)))"
_TIMEOUT = 60.0


class Started(NamedTuple):
    """How JAX started with some XLA_FLAGS."""

    alive: bool
    reason: str
    """The last word of a process that died."""
    warnings: tuple[str, ...]


@cache
def listed() -> dict[str, str]:
    """Return flags of XLA with what it says of them; it breaks its list off after some."""
    text = _ran("--help").stderr
    rows = re.findall(r"^\s*--(\w+)=[^\t]*\t[^\t]*\t(.*)$", text, re.MULTILINE)
    return {name: says.strip() for name, says in rows}


@cache
def options() -> frozenset[str]:
    """Return JAX's own options as variables of the environment."""
    names = json.loads(_ran("", _LIST).stdout)
    return frozenset(name.upper() for name in names)


@cache
def started(words: str) -> Started:
    """Return how a process starts with these XLA_FLAGS."""
    done = _ran(words)
    lines = re.findall(r"^[WE]\d{4} .*?\] (.*)$", done.stderr, re.MULTILINE)
    alive = done.returncode == 0
    return Started(alive, "" if alive else last_word(done.stderr), tuple(dict.fromkeys(lines)))


def bad(words: str) -> list[tuple[str, str]]:
    """Return the words of XLA_FLAGS that end a process, each with the reason."""
    if started(words).alive:
        return []
    good, found = [], []
    for word in words.split():
        start = started(" ".join([*good, word]))
        if start.alive:
            good.append(word)
        else:
            found.append((word, start.reason))
    return found


def advice(word: str) -> str:
    """Return what to do about a word that ends processes."""
    near = difflib.get_close_matches(name_of(word), listed(), n=1)
    return f"take it out of XLA_FLAGS{f', or is it --{near[0]}?' if near else ''}"


def state(word: str) -> str:
    """Return whether this jaxlib knows a flag: known, deprecated or ends the process."""
    start = started(word)
    if not start.alive:
        return "ends the process"
    said = [listed().get(name_of(word), ""), *start.warnings]
    old = any(word in text.lower() for text in said for word in ("deprecated", "no longer"))
    return "deprecated" if old else "known"


def name_of(word: str) -> str:
    """Return the flag's name in '--name=value'."""
    return word.removeprefix("--").partition("=")[0]


def _ran(words: str, code: str = _START) -> subprocess.CompletedProcess[str]:
    flags = {"XLA_FLAGS": words} if words else {}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=plain_environment() | {"JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu")} | flags,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
    )
