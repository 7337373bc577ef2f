"""What `make demo` and `make demo-rings` say at last: what was fitted, a picture, the time, what to do next.

python -m tests.examples.demo FOLDER_OF_RESULT FILE_WRITTEN_AT_THE_BEGINNING
"""

import sys
import time
from pathlib import Path

import homodyne_dask as hd
from homodyne_dask.results.data.numbers_and_intervals import value_and_error


def words_of_fit(folder: Path) -> list[str]:
    """Return what was fitted in three lines, and the path of a picture."""
    result = hd.load_result(folder)
    columns = (result.parameters[name].values for name in ("param", "value", "stderr", "unit"))
    words = [
        f"{n} = {value_and_error(v, e)} {u}".rstrip() for n, v, e, u in zip(*columns, strict=True)
    ]
    return [
        f"fitted:  {result.config['model']} to {result.ndata:,} pairs of simulated photon counts",
        f"motion:  {', '.join(words[:3])}",
        f"flow:    {', '.join(words[3:])}",
        f"picture: {folder}/rates.png; all of them: {folder}/report.html",
    ]


def words_of_rings(folder: Path) -> list[str]:
    """Return the same of a series over q: D at all q, and the power of q of the decay rate."""
    series = hd.load_series(folder)
    (law,), same = series.powers_of_q.values(), series.agreement["D0"]
    rings = f"{len(series.entries)} rings of simulated photon counts"
    power = value_and_error(law.exponent, law.stderr)
    return [
        f"fitted:  {series.results[0].config['model']} to each of {rings}",
        f"D(q):    {value_and_error(same.mean, same.stderr)} Å²/s at all q (they agree: p = {same.p:.2f})",
        f"rate:    proportional to q to the power {power}; diffusion has 2",
        f"picture: {folder}/series.png; the table: {folder}/series.html",
    ]


def main(folder: Path, begun: Path) -> None:
    words = words_of_rings if (folder / "series.json").is_file() else words_of_fit
    seconds = time.time() - begun.stat().st_mtime
    print("", *words(folder), f"time:    {seconds:.0f} s, simulation included", sep="\n")
    print(f"next:    homodyne-dask show {folder} --pictures pdf; your own file: docs/fits.md")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
