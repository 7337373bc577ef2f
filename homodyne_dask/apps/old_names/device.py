"""The processor under the three names that homodyne's users know."""

from homodyne_dask.apps.migration.processor_report import (
    benchmark_device_performance,
    configure_optimal_device,
    get_device_status,
)

__all__ = ["benchmark_device_performance", "configure_optimal_device", "get_device_status"]
