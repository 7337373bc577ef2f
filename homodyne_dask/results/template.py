"""HTML from templates: a value in them is escaped unless it is markupsafe's `Markup`."""

from functools import cache
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

RESULTS_PACKAGE = "homodyne_dask.results"


def render(package: str, template: str, /, **values: Any) -> str:
    """Return a template of a package filled with values; it may use those of the reports, too."""
    return _environment(package).get_template(template).render(values)


@cache
def _environment(package: str) -> Environment:
    return Environment(
        loader=ChoiceLoader(
            [PackageLoader(name) for name in dict.fromkeys((package, RESULTS_PACKAGE))]
        ),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
