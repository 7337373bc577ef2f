"""Results: data hold values and tables, views show them, files keep them.

Files import views and data, views import data, and data none of them: here the operations that data declare
(`data/operations.py`) get their functions, a group when one of its operations is first called.
"""

from homodyne_dask.results.data import operations as of


def _register(group: str) -> None:
    """Register the functions of views, evaluation or files for the operations of a group."""
    match group:
        case "figures":
            from homodyne_dask.results.views.figures import (
                design_figure,
                fit_figures,
                posterior_figures,
                scans_figure,
            )

            of.figure_of.register(fit_figures.FitResult, fit_figures.fit_figure)
            of.figure_of.register(posterior_figures.Posterior, posterior_figures.posterior_figure)
            of.figure_of.register(scans_figure.FitSeries, scans_figure.draw_series)
            of.figure_of.register(design_figure.Design, design_figure.draw_design)
            of.figure_of.register(design_figure.Toys, design_figure.draw_pulls)
        case "evaluation":
            from homodyne_dask.results.data import c2_evaluation, rate_curves

            of.rates_of.register(rate_curves.rates_of_fit)
            of.c2_of.register(c2_evaluation.fitted_c2)
            of.c2_at_times.register(c2_evaluation.c2_at)
        case "files":
            from homodyne_dask.results.files import json_files

            of.save_json.register(dict, json_files.write_with_checksum)
        case "posterior files":
            from homodyne_dask.results.files import posterior_netcdf

            of.save_netcdf.register(posterior_netcdf.write_netcdf)
        case "folders":
            from homodyne_dask.results.files import nexus, posterior_files

            of.save_nexus.register(nexus.write_nexus)
            of.save_into_folder.register(posterior_files.save_posterior)


of.set_registrar(_register)
