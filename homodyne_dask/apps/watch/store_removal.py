"""Which folders are stores of ours, by what is in them, and their removal: of nothing else."""

from pathlib import Path

from homodyne_dask.errors import StoreError
from homodyne_dask.store.arrays import read_metadata
from homodyne_dask.store.files import remove_tree
from homodyne_dask.store.schema import FORMAT, WORK_FOLDER


def is_own_store(folder: Path) -> bool:
    """Return whether a folder is a store, one being made, or empty; a link is not one."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    if (folder / WORK_FOLDER).is_dir() or not any(folder.iterdir()):
        return True
    try:
        return read_metadata(folder).get("attributes", {}).get("format") == FORMAT
    except StoreError:
        return False


def remove_own_store(folder: Path) -> bool:
    """Remove a store, if it is there; return False for anything else, which stays.

    Its mark is removed last: one that is half removed is still known as a store.
    """
    if not is_own_store(folder):
        return not folder.exists(follow_symlinks=False)
    (folder / WORK_FOLDER).mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.name != WORK_FOLDER:
            remove_tree(path)
    remove_tree(folder)
    return True
