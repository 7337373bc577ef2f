"""A posterior in the folder of its fit: its files, its pictures, and the report with both."""

from pathlib import Path

from homodyne_dask.apps.posterior.posterior import Posterior, with_posterior
from homodyne_dask.apps.posterior.posterior_netcdf import NETCDF
from homodyne_dask.apps.posterior.posterior_summary import why_unreliable
from homodyne_dask.errors import OptionError
from homodyne_dask.results.files.result_folder import (
    LOCK,
    POSTERIOR_PICTURES,
    locked_folder,
    move_files,
    staging,
    write_report,
)
from homodyne_dask.results.result_classes import FitResult
from homodyne_dask.results.saved_results import SUMMARY, load_result
from homodyne_dask.results.views.panels import png_of
from homodyne_dask.results.views.style import TITLES
from homodyne_dask.store.files import path_of, write_file

CAPTIONS = {
    "posterior_corner": "Posterior: density of each parameter and of each pair, with 68 % and 95 % contours",
    "posterior_rates": "Posterior of the rates: median with 68 % and 95 % bands, and 95 % band of the fit",
}


def save_posterior(posterior: Posterior, folder: str | Path) -> list[Path]:
    """Write the files of a posterior into the folder of its fit, the report and summary.json again.

    Return the files, summary.json last. A folder whose summary.json names a posterior has all its files.
    Raises OptionError for a folder without a fit, or with another one.
    """
    folder = path_of("folder", folder)
    before = _fit_in(folder, posterior.result)
    result = with_posterior(before, posterior.plain)
    with locked_folder(folder, LOCK), staging(folder) as there:
        posterior.to_netcdf(there / NETCDF)
        drawn = _write_pictures(posterior, there)
        write_file(there / "report.txt", result.report(all=True) + "\n")
        of_fit = [folder / f"{name}.png" for name in TITLES]
        write_report(result, there, [path for path in of_fit if path.is_file()], drawn)
        if before.errors.posterior is not None:
            with_posterior(before, None).to_json(folder / SUMMARY)
        for path in (folder / NETCDF, *folder.glob(POSTERIOR_PICTURES)):
            path.unlink(missing_ok=True)
        files = move_files(there, folder)
        result.to_json(folder / SUMMARY)
    return [*files, folder / SUMMARY]


def _fit_in(folder: Path, result: FitResult) -> FitResult:
    """Return the fit of a folder, which has to be that of the posterior."""
    if not (folder / SUMMARY).is_file():
        raise OptionError(
            f"{folder} contains no fit, but a posterior is written beside its fit: give the folder of the "
            f"fit, or write the posterior alone with to_netcdf"
        )
    present = load_result(folder)
    same = (
        present.provenance.inputs["store_sha256"] == result.provenance.inputs["store_sha256"]
        and present.config["model"] == result.config["model"]
        and present.parameters["optimum"].equals(result.parameters["optimum"])
        and [*present.provenance.inputs["frames"]] == [*result.provenance.inputs["frames"]]
        and present.scaling["label"].equals(result.scaling["label"])
    )
    if not same:
        raise OptionError(
            f"{folder} contains another fit: give the folder of the fit of this posterior"
        )
    return present


def _write_pictures(posterior: Posterior, folder: Path) -> list[Path]:
    pictures, paths = {"posterior_corner": posterior.plot.corner}, []
    if "J" in posterior.tree["posterior"].dataset:
        pictures["posterior_rates"] = posterior.plot.rates
    for name, draw in pictures.items():
        paths.append(folder / f"{name}.png")
        about = {"Title": CAPTIONS[name], "Description": _alternative(posterior, name)}
        write_file(paths[-1], png_of(draw(), about))
    return paths


def _alternative(posterior: Posterior, name: str) -> str:
    """Return the text alternative of a figure: medians and intervals, of rates at the last frame."""
    if why := why_unreliable(posterior.plain):
        return why
    of = {name: row["quantiles"] for name, row in posterior.plain["parameters"].items()}
    if name == "posterior_rates":
        rates = posterior.values()["rates"].items()
        of = {rate: {p: values[-1] for p, values in row.items()} for rate, row in rates}
    words = (
        f"{name} {q['50']:.4g}, 95 % interval from {q['2.5']:.4g} to {q['97.5']:.4g}"
        for name, q in of.items()
    )
    return f"Median: {'; '.join(words)}."
