"""Reading of a YAML file that may be a stranger's: plain values, of limited size."""

import re
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError
from yaml.error import MarkedYAMLError

from homodyne_dask.errors import OptionError, one_line, why_unreadable
from homodyne_dask.store.files import read_regular_file

MAX_BYTES = 1_000_000
"""Bytes of the largest file that is read."""
_MAX_REASON = 200
"""Most letters of a reason that a message quotes."""


class _PlainLoader(yaml.SafeLoader):
    """Loads plain values; aliases, by which a small file becomes a huge value, are errors.

    -30:30 and 0:22.5 are text: YAML 1.1 takes them for numbers in base 60, -1830 and 22.5.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise ComposerError(
                None, None, "aliases (*name) are not supported: write the value itself", mark
            )
        return super().compose_node(parent, index)

    def construct_scalar(self, node: Any) -> Any:
        value = super().construct_scalar(node)
        if isinstance(value, str) and re.search("[\0\ud800-\udfff]", value):
            raise ConstructorError(
                None, None, "a character that is not allowed in text", node.start_mark
            )
        return value


def _read_number(tag: str) -> None:
    """Let the loader read a number as before, but one with a colon as text."""
    before = _PlainLoader.yaml_constructors[tag]

    def read(loader: _PlainLoader, node: Any) -> Any:
        return loader.construct_scalar(node) if ":" in node.value else before(loader, node)

    _PlainLoader.add_constructor(tag, read)


_read_number("tag:yaml.org,2002:int")
_read_number("tag:yaml.org,2002:float")


def read_yaml(path: Path, remedy: str) -> Any:
    """Return the content of a YAML file as plain values.

    remedy: what to do where there is no such file, the end of the sentence. Raises OptionError for a file
    that cannot be read, is not YAML, has aliases, or holds values that Python has no form for.
    """
    try:
        return _PlainLoader(read_regular_file(path, MAX_BYTES).decode()).get_single_data()
    except OSError as e:
        raise OptionError(f"{path} cannot be read ({why_unreadable(e)}): {remedy}") from e
    except yaml.YAMLError as e:
        why = one_line(str(e))
        if isinstance(e, MarkedYAMLError) and (mark := e.problem_mark) is not None:
            words = ", ".join(part for part in (e.context, e.problem) if part)
            why = f"{words} (line {mark.line + 1}, column {mark.column + 1})"
        raise OptionError(f"{path} is not YAML: {why}") from e
    except RecursionError as e:
        raise OptionError(f"{path} is nested too deeply: write plain keys with values") from e
    except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as e:
        # no text; dates such as 2024-99-99, numbers of thousands of digits, values that are not of their tag
        why = why_unreadable(e)[:_MAX_REASON]
        raise OptionError(
            f"{path} cannot be read ({why}): write text with plain values, or put them in quotes"
        ) from e
