"""The packages: those of the two folders, and docs/ as `homodyne_dask.docs`, which `explain` prints."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["homodyne_dask*", "ingest*"]), "homodyne_dask.docs"],
    package_dir={"homodyne_dask.docs": "docs"},
)
