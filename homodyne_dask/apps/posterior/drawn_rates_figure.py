"""The figure of the rates that the draws of a posterior have, beside those of the fit."""

from functools import partial

import numpy as np
from matplotlib.axes import Axes

from homodyne_dask.apps.posterior.posterior import Posterior
from homodyne_dask.errors import OptionError
from homodyne_dask.results.views import panels as draw
from homodyne_dask.results.views.fit_figures import AXES, HEIGHT
from homodyne_dask.results.views.style import COLOURS, plain_label


def draw_posterior_rates(posterior: Posterior) -> draw.FitFigure:
    """Draw each rate against time, and below it its difference from the fit.

    Raises OptionError for a model that has no rates.
    """
    group = posterior.tree["posterior"].dataset
    if "J" not in group:
        raise OptionError(f"{posterior.result.config['model']} has no rates J and γ̇ to draw")
    names = [name for name in AXES if name in group]
    note = posterior.tree.attrs["adjust_note"]
    words = f"bands: 68 % and 95 % of the draws; dotted: 95 % band of the fit; {note}"
    shown = {
        name + " difference" * away: partial(_drawn_rate, posterior=posterior, name=name, away=away)
        for away in (False, True)
        for name in names
    }
    return draw.page(shown, len(names), HEIGHT, plain_label(words))


def _drawn_rate(axis: Axes, posterior: Posterior, name: str, away: bool) -> None:
    """Draw a rate, or its difference from the fit, in per cent where no value is 0."""
    of, constant = posterior.tree["posterior"].dataset, posterior.tree["constant_data"].dataset
    t, values = of["age"].values, of[name].values.reshape(-1, of.sizes["age"])
    unit, (y, title) = of[name].attrs["units"], AXES[name]
    fit, low, high = (constant[f"{name}_fit{end}"].values for end in ("", "_low_95", "_high_95"))
    draws = np.quantile(values, (0.025, 0.16, 0.5, 0.84, 0.975), axis=0)
    curves = np.vstack([draws, fit, low, high])
    if name == "strain":  # it begins at 0
        t, curves = t[1:], curves[:, 1:]
    fit = curves[5]
    relative = bool((fit > 0).all() or (fit < 0).all())
    words = y.replace("Å²/s", unit), title
    if away:
        curves = (curves - fit) * (100 / np.abs(fit) if relative else 1.0)
        words = "difference [%]" if relative else f"difference [{unit}]", ""
    draw.label_axes(axis, "t [s]", *words)
    low_95, low_68, median, high_68, high_95, fit, low, high = curves
    draw.band(axis, t, np.stack([low_95, high_95]), 95)
    draw.band(axis, t, np.stack([low_68, high_68]), 68)
    axis.plot(t, median, color=COLOURS[0], label="posterior")
    axis.plot(t, fit, "--", color=COLOURS[1], linewidth=1.2, label="fit")
    axis.plot(t, np.stack([low, high], 1), ":", color=COLOURS[1], linewidth=1.0)
    if name != "strain":
        draw.log_scale_if_wide(axis, "x", t)
        if not away:
            draw.log_scale_if_wide(axis, "y", median)
