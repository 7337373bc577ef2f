"""Values that are handed out: who has them cannot change what a fit goes on with, or what it wrote."""

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

import numpy as np


def make_read_only(value: Any) -> None:
    """Make the arrays in a value and its parts read-only: dataclasses, tuples, lists, mappings, tables."""
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
        parts: Any = ()
    elif hasattr(value, "variables"):  # of xarray
        parts = [of.data for of in value.variables.values()]
    elif hasattr(value, "variable"):
        parts = [value.data]
    elif isinstance(value, Mapping):
        parts = value.values()
    elif is_dataclass(value):
        parts = vars(value).values()
    else:
        parts = value if isinstance(value, tuple | list) else ()
    for part in parts:
        make_read_only(part)
