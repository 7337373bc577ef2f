"""The user guide, a page for each question: what the numbers of a fit mean and what to do with them.

    conventions    what is fitted, in which units, and the factor 2.22 between the two conventions
    scaling        contrast and offset: each angle its own, shared, a series in φ, or given
    errors         what the error bars mean, and when there are none
    undetermined   what to do with a parameter that the data do not determine

`homodyne-dask explain errors` prints a page; in Python `print(hd.guide.page("errors"))`. The numbers of
the pages are computed by the tests.
"""

import inspect
from importlib import import_module

from homodyne_dask.errors import OptionError, nearest

PAGES = ("conventions", "scaling", "errors", "undetermined")


def page(name: str) -> str:
    """Return a page of the guide; raises OptionError for one that there is not."""
    if name not in PAGES:
        raise OptionError(f"the guide has no page {name!r}; {nearest(name, PAGES)}")
    return inspect.getdoc(import_module(f"{__name__}.{name}")) or ""
