"""A function for Globus Compute: a result file and a fit.yaml become the JSON of a fit.

    from globus_compute_sdk import Executor
    from globus_compute_sdk.serialize import ComputeSerializer, PureSourceTextInspect
    by_source = ComputeSerializer(strategy_code=PureSourceTextInspect())
    with Executor(endpoint_id=ENDPOINT, serializer=by_source) as executor:
        fit = executor.submit(fit_result_file, "/data/A0123_results.hdf", "/data/fit.yaml", "/data/fits")
        print(fit.result()["parameters"]["D0"])

Its source text is sent, so it imports what it needs itself. The endpoint's Python has homodyne-dask.
"""


def fit_result_file(source: str, fit_yaml: str, output: str) -> dict:
    """Ingest a result file, fit it, and return what the command writes to summary.json, or series.json.

    source: what `ingest` reads. fit_yaml: options of `fit`; its data and output are replaced. output:
    folder of the store, the options and the folder of the result, by the name of the source; an
    earlier result of it is replaced. A fit that does not converge is a result, whose `outcome` says so.
    Raises RuntimeError with the sentence of the command for bad input.
    """
    import json
    import subprocess
    import sys
    from pathlib import Path

    import yaml

    name, folder = Path(source).stem.removesuffix("_results"), Path(output).resolve()
    store, options, result = (folder / f"{name}{end}" for end in ("_c2.zarr", ".yaml", "_fit"))

    def run(*words: str) -> None:
        command = [sys.executable, "-m", "homodyne_dask.cli", *words, "--overwrite", "-q"]
        ended = subprocess.run(command, capture_output=True, text=True)
        if ended.returncode not in (0, 3):  # 3: it did not converge
            raise RuntimeError(ended.stderr.strip() or f"{words[0]} ended with {ended.returncode}")

    folder.mkdir(parents=True, exist_ok=True)
    given = yaml.safe_load(Path(fit_yaml).read_text())
    if isinstance(given, dict):  # else the command says what is wrong
        given |= {"data": store.name, "output": result.name}
    options.write_text(yaml.safe_dump(given))
    run("ingest", str(Path(source).resolve()), str(store))
    run("fit", str(options))
    (written,) = (file for file in result.glob("s*.json") if file.stem in ("summary", "series"))
    return json.loads(written.read_text())
