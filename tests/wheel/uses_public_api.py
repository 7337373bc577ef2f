"""A script of a user: `make test-wheel` checks its types against the wheel, and runs it."""

from typing import assert_type

import xarray as xr

import homodyne_dask as hd

hd.simulate("B0001.h5", "creep", angles=9, frames=60)
report = hd.ingest("B0001.h5")
scan = assert_type(hd.open_dataset(report.store), hd.Scan).select(phi=(-90, 90))
print(hd.plan(scan, "laminar_flow", gap="200 um"))
result = assert_type(hd.fit(scan, hd.STATIC), hd.FitResult)
table: xr.Dataset = result.parameters
value, outcome = float(table["value"].sel(param="D0")), assert_type(result.outcome, hd.Outcome)
assert outcome is hd.Outcome.CONVERGED, outcome
result.to_json("B0001.json")
assert assert_type(hd.load_result("B0001.json"), hd.FitResult).chisqr == result.chisqr
try:
    hd.fit(scan, "no_such_model")
except hd.HomodyneDaskError as error:
    print(f"D0 {value:.0f}; {error}")
