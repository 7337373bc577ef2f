"""Draw docs/demo.png, the picture of the README, from the store that `make demo` leaves.

python -m tests.examples.demo_picture
"""

import io
from pathlib import Path

from PIL import Image

import homodyne_dask as hd

STORE, PICTURE = Path("demo/A0001_c2.zarr"), Path("docs/demo.png")
ANGLES = [0.0, -86.09]
"""Degrees: along and across the flow."""
COLOURS = 128
"""Of the palette: noise does not compress, and a palette takes a third of the space."""


def main() -> None:
    scan = hd.open_dataset(STORE).select(phi=[(angle - 1, angle + 1) for angle in ANGLES])
    result = hd.fit(scan, hd.LAMINAR_FLOW)
    drawn = io.BytesIO()
    result.plot.maps(scan).savefig(drawn, dpi=150)
    Image.open(drawn).convert("RGB").quantize(COLOURS).save(PICTURE, optimize=True)


if __name__ == "__main__":
    main()
