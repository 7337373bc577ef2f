"""Streaming passes over a store by URL, from nginx on loopback, beside those over the same store on disk.

nginx is installed apart from Python (`apt install nginx-light`); moto answers 50 requests a second, which
would be the rate that is measured.
"""

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import homodyne_dask as hd
import ingest
from tests.benchmarks import data
from tests.benchmarks.passes import Row, passes_over, timed, truth

CONFIGURATION = """
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  sendfile on;
  keepalive_requests 1000000;
  server {{ listen 127.0.0.1:{port}; root {folder}; }}
}}
"""


@contextmanager
def web_server(folder: Path) -> Iterator[str]:
    """Yield the URL at which nginx serves a folder."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    file = folder / "nginx.conf"
    file.write_text(CONFIGURATION.format(folder=folder, port=port))
    with subprocess.Popen(["nginx", "-c", str(file), "-g", "daemon off; user root;"]) as process:
        time.sleep(1)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def streaming(folder: Path, frames: int = 2950, angles: int = 9, threads: int = 1) -> Row:
    """Rates of passes that read every chunk: single files on disk, shards on disk, shards by URL."""
    once = data.store(folder, frames, angles)
    sharded = once.with_name(f"sharded_{once.name}")
    if not sharded.exists():
        ingest.ingest(data.source(folder, frames, angles), sharded, sharded=True)
    found: Row = {}
    theta = truth(hd.open_dataset(once))
    with web_server(folder) as url:
        for name, store in (
            ("files", str(once)), ("shards", str(sharded)), ("URL", f"{url}/{sharded.name}"),
        ):  # fmt: skip
            with passes_over(store, "stream", 1, threads) as sweep:
                row = timed(sweep, theta)
            found |= {
                f"{name}, M pairs/s": row["M pairs/s"],
                f"{name}, ns": row["ns of CPU per pair"],
            }
            found[f"{name}, best"] = row["best of 7"]
    found["of the rate on disk"] = found["URL, M pairs/s"] / found["shards, M pairs/s"]
    found["best of the best on disk"] = found["URL, best"] / found["shards, best"]
    found["shards / files"] = found["shards, M pairs/s"] / found["files, M pairs/s"]
    return found
