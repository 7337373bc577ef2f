"""One-time correlations in result files: multi-tau g2 of APS (APS-U and legacy) and of NXxpcs."""

from pathlib import Path

import h5py
import numpy as np
from jaxtyping import Float

from homodyne_dask.errors import SourceError
from ingest.readers import aps, hdf5, nxxpcs
from ingest.readers.g2_curves import Curves, source_of_curves
from ingest.readers.options import IngestOptions
from ingest.readers.source import Source

APS_U, LEGACY, NEXUS = "/xpcs/multitau/normalized_g2", "/exchange/norm-0-g2", "/entry/data/g2"
G2 = {
    APS_U: (f"{APS_U}_err", "/xpcs/multitau/delay_list"),
    LEGACY: ("/exchange/norm-0-stderr", "/exchange/tau"),
    NEXUS: ("/entry/data/g2_derr", "/entry/data/delay_difference"),
}
"""Where result files hold g2, and its errors and delays."""
CONFIG = "/xpcs/multitau/config"
FRAMES = f"{aps.DETECTOR}/frame_time", f"{CONFIG}/stride_frame", f"{CONFIG}/avg_frame"
LEGACY_FRAMES = aps.EXPOSURE, aps.STRIDE, aps.AVG
"""The time between frames of the detector, and how many of these make one of the delays."""


def g2_in(file: h5py.File) -> str | None:
    """Return where a result file holds g2, None where it does not."""
    return next((name for name in G2 if hdf5.dataset(file, name) is not None), None)


def open_g2(path: Path, options: IngestOptions, name: str) -> Source:
    """Return the curves of g2 in the dataset `name` of a result file."""
    notes: list[str] = []
    of_errors, of_delays = G2[name]
    with hdf5.open_hdf5(path) as file:
        delay = _delays(file, name, of_delays, notes)
        g2 = _curves(file, name, len(delay))
        error = None
        if hdf5.dataset(file, of_errors) is not None:
            error = _curves(file, of_errors, len(delay))
            if error.shape != g2.shape:
                raise hdf5.wrong(file, of_errors, f"has {len(error)} curves, and {name} {len(g2)}")
        label = np.arange(1, len(g2) + 1)
        if name == APS_U:
            q, phi = aps.q_phi(file, label, notes)
        elif name == LEGACY:
            q, phi = aps.q_phi_of_lists(file, label, notes)
        else:
            q, phi = nxxpcs.q_phi(file, "/entry/instrument/masks", label, notes)
    names, kinds = [f"curve {n} in {name}" for n in label], ["g2"] * len(g2)
    curves = Curves(delay, g2, error, q, phi, names=names, kinds=kinds)
    return source_of_curves(path, "g2-hdf5", options, curves, notes)


def _curves(file: h5py.File, name: str, delays: int) -> Float[np.ndarray, "bin n"]:
    values = hdf5.array(file, name).astype(float)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or delays not in values.shape:
        raise hdf5.wrong(file, name, f"has shape {values.shape} for {delays} delays")
    return values.T if len(values) == delays else values


def _delays(
    file: h5py.File, name: str, of_delays: str, notes: list[str]
) -> Float[np.ndarray, " n"]:
    """Return delays in s; whole numbers are frames, which the file says the length of."""
    delay, unit = hdf5.numbers(file, of_delays), hdf5.unit(file, of_delays)
    in_unit = name == NEXUS and unit not in (None, "", "frames", "frame")
    if in_unit or (delay != np.round(delay)).any():
        return hdf5.quantity(file, of_delays, "time", notes)
    spacing, *counts = LEGACY_FRAMES if name == LEGACY else FRAMES
    if hdf5.dataset(file, spacing) is None:
        raise SourceError(
            f"{of_delays} of {hdf5.file_name(file)} is in frames, and {spacing} is missing: correct the file"
        )
    step = hdf5.seconds(file, spacing)
    for count in counts:
        if hdf5.dataset(file, count) is not None:
            step *= hdf5.positive(file, count, whole=True)
    notes.append(f"delays are those of {of_delays.rpartition('/')[2]}, frames of {step:g} s")
    return delay * step
