"""Draw docs/demo.png, the picture of the README, from the fits that `make demo` and `make demo-rings` leave.

python -m tests.examples.demo_picture
"""

from pathlib import Path

from matplotlib.figure import Figure

import homodyne_dask as hd

FLOW, RINGS, PICTURE = Path("demo/A0001_fit"), Path("demo/R0001_fit_q"), Path("docs/demo.png")


def main() -> None:
    picture = Figure(figsize=(7.0, 2.4), dpi=200)
    rings, flow = picture.subplots(1, 2)
    hd.load_series(RINGS).plot(rings, panel="Gamma")
    hd.load_result(FLOW).plot.rates(ax=flow, panel="gamma_dot")
    picture.tight_layout()
    picture.savefig(PICTURE)


if __name__ == "__main__":
    main()
