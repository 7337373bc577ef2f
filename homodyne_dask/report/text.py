"""The report as text."""

from homodyne_dask.result import FitResult


def report(result: FitResult) -> str:
    """Return the report of a fit as text."""
    return f"{result.outcome.value}\n{result.parameters.to_dataframe().to_string()}"
