"""The life of a store by az://, and reading of one by gs://, where their emulators are on the PATH.

`npm install azurite` installs that of Azure. Of Google's, fake-gcs-server reads as obstore does, and neither
lists nor writes so.
"""

import shutil
from pathlib import Path
from urllib.parse import quote

import pytest

import homodyne_dask as hd
import ingest
from homodyne_dask.errors import ObjectStoreError, StoreError
from homodyne_dask.store import objects
from homodyne_dask.store.lock import locked
from homodyne_dask.store.url_path import url_path
from tests import object_server
from tests.run_command import done, run

STORE = f"az://{object_server.BUCKET}/a b/A_c2.zarr"
FIT = ("--model", "static", "--fixed", "D_offset=0", "--no-pictures")


def needs(program: str) -> pytest.MarkDecorator:
    reason = f"{program} is not on the PATH"
    return pytest.mark.skipif(shutil.which(program) is None, reason=reason)


@pytest.fixture(scope="module")
def azure():
    with object_server.azure_server() as account:
        yield account


def interrupt(*_: int) -> None:
    raise KeyboardInterrupt


def numbers(fitted: hd.FitResult) -> bytes:
    return fitted.parameters[["value", "stderr"]].to_array().values.tobytes()


@needs("azurite-blob")
def test_a_store_lives_in_a_container_of_azure(here, azure):
    with pytest.raises(KeyboardInterrupt):
        ingest.ingest(here / "A_results.hdf", STORE, progress=interrupt)
    with pytest.raises(StoreError, match="is incomplete: run `homodyne-dask ingest` again"):
        hd.open_dataset(STORE)
    lock = url_path("lock", f"{STORE}/.ingest/lock")
    with locked(lock) as held:
        assert held
        assert "another ingest is writing" in run("ingest", "A_results.hdf", STORE).output
    done("ingest", "A_results.hdf", STORE)
    assert not [path for path in objects.below(url_path("store", STORE)) if ".ingest" in str(path)]
    done("fit", STORE, *FIT, "-o", "U_fit")
    done("fit", "A_c2.zarr", *FIT, "-o", "A_fit")
    assert numbers(hd.load_result("U_fit")) == numbers(hd.load_result("A_fit"))


@needs("azurite-blob")
def test_keys_that_azure_refuses_and_a_container_that_is_gone_are_named(azure, monkeypatch):
    object_server.ask_azure("PUT", f"{azure}/short?restype=container")
    objects.write(url_path("object", "az://short/zarr.json"), b"{}")
    object_server.ask_azure("DELETE", f"{azure}/short?restype=container")
    with pytest.raises(ObjectStoreError, match=r"^az://short/zarr.json .*its bucket does not ex"):
        hd.open_dataset("az://short")
    other = "b3RoZXI="
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", other)
    objects.connection.cache_clear()
    with pytest.raises(ObjectStoreError, match=r"access is refused, 403 Forbidden, Auth") as raised:
        hd.open_dataset(STORE)
    assert not any(key in str(raised.value) for key in (other, object_server.ACCOUNT_KEY))
    assert len(str(raised.value).splitlines()) == 1
    objects.connection.cache_clear()


@needs("fake-gcs-server")
def test_a_store_in_googles_storage_is_fitted_with_the_bits_of_the_disk(here):
    ingest.ingest(here / "A_results.hdf", here / "S_c2.zarr", sharded=True)
    with object_server.google_server() as address:
        upload = f"{address}/upload/storage/v1/b/{object_server.BUCKET}/o?uploadType=media&name="
        for file in Path("S_c2.zarr").rglob("*"):
            if file.is_file():
                object_server.ask("POST", upload + quote(str(file), safe=""), file.read_bytes())
        url = f"gs://{object_server.BUCKET}/S_c2.zarr"
        done("fit", url, *FIT, "-o", "G_fit")
        objects.connection.cache_clear()
    done("fit", "S_c2.zarr", *FIT, "-o", "S_fit")
    assert numbers(hd.load_result("G_fit")) == numbers(hd.load_result("S_fit"))
