"""Draw docs/demo.png, the picture of the README, from the store that `make demo` leaves."""

import io

from PIL import Image

import homodyne_dask as hd

scan = hd.open_dataset("demo/A0001_c2.zarr").select(phi=[0.0, -86.09])
result = hd.fit(scan, hd.LAMINAR_FLOW)
drawn = io.BytesIO()
result.plot.maps(scan).savefig(drawn, dpi=100)
# noise does not compress: 128 colours take a third of the space
Image.open(drawn).convert("RGB").quantize(128).save("docs/demo.png", optimize=True)
