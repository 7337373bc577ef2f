"""A fit as one NeXus file: NXxpcs with the maps of all bins, and the fit as NXfit."""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from homodyne_dask.errors import in_line, printable
from homodyne_dask.results.data.c2_means import times_of
from homodyne_dask.results.data.derived_quantities import derived_quantities
from homodyne_dask.results.data.fit_result import LIMITS, FitValues
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.data.fitted_parameters import FittedParameters
from homodyne_dask.results.files.csv_and_netcdf import NXXPCS
from homodyne_dask.results.files.json_files import RESULT
from homodyne_dask.store import schema

PIXELS = (
    "dynamic_roi_map lists the pixels of each bin one after the other, "
    "not at their positions on the detector"
)


def nexus_file(view: FitView) -> bytes:
    """Return a fit as NeXus in HDF5: application definition NXxpcs, with base class NXfit for the fit.

    Its two-time correlations (q, frames, frames) are means over blocks of pairs, at most 256 a side, of all
    bins that were fitted; NaN on the diagonal. What NXxpcs has and nobody knows is absent.
    It is made in memory: HDF5 crashes where it cannot write to a disk.
    """
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        creator = f"homodyne-dask {view.result.provenance.version}"
        file.attrs.update(NX_class="NXroot", default="entry", creator=creator)
        entry = _group(file, "entry", "NXentry", default="data")
        _write_entry(entry, view)
        fit = _group(entry, "fit", "NXfit")
        _write_correlations(entry, fit, view)
        _write_fit(fit, view.result)
        _write_instrument(entry, view)
        _write_process(entry, view.result)
    return content.getvalue()


def _group(parent: h5py.Group, name: str, nexus_class: str, **attributes: Any) -> h5py.Group:
    group = parent.create_group(name)
    group.attrs.update(NX_class=nexus_class, **attributes)
    return group


def _field(parent: h5py.Group, name: str, value: Any, **attributes: Any) -> None:
    parent.create_dataset(name, data=value).attrs.update(attributes)


def _write_entry(entry: h5py.Group, view: FitView) -> None:
    inputs, experiment = view.result.provenance.inputs, view.scan.attributes.experiment
    entry["definition"] = "NXxpcs"
    entry["title"] = f"{view.result.config['model']} fitted to {in_line(inputs['store'])}"
    name_of_scan = Path(inputs["source_file"]).stem.removesuffix("_results")
    named = {"entry_identifier": {"value": in_line(name_of_scan)}}
    for name in schema.ENTRY_FIELDS:
        if field := (named | experiment).get(name):
            entry[name] = field["value"]


def _write_correlations(entry: h5py.Group, fit: h5py.Group, view: FitView) -> None:
    scan, axis = view.scan, view.axis
    shape, of_bin = (len(scan.bins), axis.number, axis.number), (1, axis.number, axis.number)
    packed = {"dtype": np.float32, "chunks": of_bin, "compression": "gzip", "shuffle": True}
    times, axes = times_of(scan, axis.middles), {"axes": [".", "t1", "t2"]}
    twotime = _group(entry, "twotime", "NXdata", signal="two_time_corr_func", **axes)
    measured = twotime.create_dataset("two_time_corr_func", shape, **packed)
    measured.attrs.update(
        NXXPCS, units="", frames_per_row=axis.side, of_cells=scan.cells is not None
    )
    data = _group(fit, "data", "NXdata", signal="fit_sum", **axes)
    model = data.create_dataset("fit_sum", shape, **packed)
    model.attrs["units"] = ""
    data["input_dependent"] = measured
    g2 = np.full((axis.number - 1, len(scan.bins)), np.nan)  # the mean along each diagonal
    for n in range(len(scan.bins)):
        bin_map = view.map_of(n)
        measured[n], model[n] = bin_map.data, bin_map.model
        for lag in range(1, axis.number):
            diagonal = np.diagonal(bin_map.data, lag)
            finite = diagonal[np.isfinite(diagonal)]
            if finite.size:
                g2[lag - 1, n] = finite.mean()
    _field(twotime, "t1", times, units="s", long_name="mean start of the frames of a row")
    for group, name in ((twotime, "t2"), (data, "t1"), (data, "t2")):
        group[name] = twotime["t1"]
    _field(twotime, "label", scan.label, long_name="number of the bin at the beamline")
    if scan.has_repeats:
        _field(twotime, "scan", scan.scan_number, long_name="number of the scan, from 1")
    by_lag = _group(entry, "data", "NXdata", signal="g2", axes=["delay_difference", "."])
    _field(by_lag, "g2", g2, units="", storage_mode="one_array", long_name="mean of c2 at a lag")
    lags = np.arange(1, axis.number)
    _field(by_lag, "delay_difference", lags, units="", storage_mode="one_array")


def _write_instrument(entry: h5py.Group, view: FitView) -> None:
    scan = view.scan
    experiment = scan.attributes.experiment
    instrument = _group(entry, "instrument", "NXinstrument")
    if "incident_energy" in experiment:
        beam = _group(instrument, "incident_beam", "NXbeam")
        _write_known(beam, experiment, schema.BEAM_FIELDS)
    detector = _group(instrument, "detector_1", "NXdetector")
    frame_time = scan.attributes.frame_time * view.axis.side
    _field(detector, "frame_time", frame_time, units="s")
    _write_known(detector, experiment, schema.DETECTOR_FIELDS)
    masks = _group(instrument, "masks", "NXnote")
    if (scan.n_pixels > 0).all():
        pixels = np.repeat(np.arange(1, len(scan.bins) + 1), scan.n_pixels)
        roi_map = masks.create_dataset("dynamic_roi_map", data=pixels, compression="gzip")
        roi_map.attrs["units"] = "au"
        masks["description"] = PIXELS
    if np.isfinite(scan.q).all():
        _field(masks, "dynamic_q_list", scan.q, units="1/angstrom")
    if np.isfinite(scan.phi).all():
        _field(masks, "dynamic_phi_list", scan.phi, units="degree")
    if experiment.keys() & {*schema.SAMPLE_FIELDS}:
        _write_known(_group(entry, "sample", "NXsample"), experiment, schema.SAMPLE_FIELDS)


def _write_known(group: h5py.Group, experiment: Mapping[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        if field := experiment.get(name):
            units = {"units": field["units"]} if "units" in field else {}
            _field(group, name, field["value"], **units)


def _write_fit(fit: h5py.Group, result: FitValues) -> None:
    config = result.config
    fit["label"] = printable(result.verdict)
    function = _group(fit, "global_fit_function", "NXfit_function")
    function["function_type"] = config["model"]
    function["description"] = f"c2 of all bins, in the convention {config['convention']}"
    names = ", ".join(FittedParameters(result))
    function["formula_description"] = f"contrast*f({names}; t1, t2, q, phi) + offset"
    parameters = _group(function, "fit_parameters", "NXparameters", model=config["model"])
    _write_parameters(parameters, result)
    derived = _group(fit, "derived_quantities", "NXparameters")
    words_of = {"stderr": "error"} | {key: key for key in ("low_95", "high_95", *LIMITS)}
    for name, quantity in derived_quantities(result).items():
        numbers = {word: getattr(quantity, key) for key, word in words_of.items()}
        attributes = {word: number for word, number in numbers.items() if np.isfinite(number)}
        attributes |= {"units": quantity.unit, "formula": quantity.formula}
        _field(derived, name, quantity.value, **attributes)
    for name in ("contrast", "offset"):
        about: dict[str, Any] = {"units": "", "vary": config["scaling"] != "fixed"}
        stderr = result.scaling.get(f"{name}_stderr")
        if stderr is not None and np.isfinite(stderr).any():
            about["error"] = stderr.values
        _field(parameters, name, result.scaling[name].values, **about)
    error = _group(fit, "error_function", "NXfit_function")
    words = "Levenberg-Marquardt, contrast and offset eliminated; loss"
    error["description"] = f"{words} {config['loss']}"
    for name, metric in (("chisqr", "χ²"), ("redchi", "reduced χ²")):
        _field(fit, f"figure_of_merit_{name}", getattr(result, name), units="", metric=metric)


def _write_parameters(group: h5py.Group, result: FitValues) -> None:
    for name, parameter in FittedParameters(result).items():
        attributes: dict[str, Any] = {"units": parameter.unit, "vary": parameter.vary}
        if parameter.stderr is not None:  # an error or bound that is not known is absent
            attributes |= {"error": parameter.stderr, "error_method": parameter.method}
        for key in ("min", "max", *LIMITS):
            if (end := getattr(parameter, key)) is not None and np.isfinite(end):
                attributes[key] = end
        _field(group, name, parameter.value, **attributes)


def _write_process(entry: h5py.Group, result: FitValues) -> None:
    process = _group(entry, "process", "NXprocess")
    process["program"], process["version"] = "homodyne-dask", result.provenance.version
    note = _group(process, "summary", "NXnote")
    note["type"] = "application/json"
    note["description"] = "the complete result, as in summary.json"
    note["data"] = np.bytes_(json.dumps(RESULT.to_dict(result), allow_nan=False))
