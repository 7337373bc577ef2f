"""HTML from templates: a value in them is escaped unless it is markupsafe's `Markup`."""

import re
from functools import cache
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from homodyne_dask.errors import printable

RESULTS_PACKAGE = "homodyne_dask.results.views"
_COMMAND = re.compile("`([^`\n]+)`")


def render(package: str, template: str, /, **values: object) -> str:
    """Return a template of a package filled with values; it may use those of the reports, too."""
    return _environment(package).get_template(template).render(values)


def with_commands(value: Any) -> Any:
    """Return text with what stands between backticks as code; HTML stays as it is."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return Markup(_COMMAND.sub(r"<code>\1</code>", str(escape(printable(value)))))


@cache
def _environment(package: str) -> Environment:
    environment = Environment(
        loader=ChoiceLoader(
            [PackageLoader(name) for name in dict.fromkeys((package, RESULTS_PACKAGE))]
        ),
        autoescape=True,
        # no control characters; what was escaped still is
        finalize=lambda value: type(value)(printable(value)) if isinstance(value, str) else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["with_commands"] = with_commands
    return environment
