"""Describe a bundle that is open, and the data files that it finds.

Of data files only header and index are read, to tell where their bytes go; a missing
one is not an error, and the report says so.
"""

from collections.abc import Sequence

from kvc.schema.container import (
    HEADER_NBYTES,
    BundleFile,
    find_data_file,
    is_spare,
    match_index,
    search_path,
)
from kvc.schema.errors import DataFileMissing, KvcError
from kvc.tools.reports.overview import DumpReport, describe_bundle
from kvc.tools.reports.recipes import body_of
from kvc.tools.reports.sizes import FoundFile, describe_size


def describe_file(
    file: BundleFile,
    folders: Sequence[str],
    by_method: bool,
    backend: str | None = None,
) -> DumpReport:
    """Return every report on a bundle.

    Args:
        file: open.
        folders: where to look for data files, after the bundle's own folder.
        by_method: whether to tell what the code of each method takes in the file,
            which takes a while.
        backend: which recipe's methods to describe; None for the first.

    Raises:
        BadSetting: the bundle has no recipe for this backend.
    """
    program = file.program
    found = [_find(file, number, folders) for number in range(1, len(program.files))]
    tail = file.header.tail_nbytes
    sizes = describe_size(program, file.size, HEADER_NBYTES, tail, by_method, found)
    body = body_of(program, backend)
    return describe_bundle(file, body, sizes)


def _find(bundle: BundleFile, number: int, folders: Sequence[str]) -> FoundFile | str:
    """Return what a data file holds, or why it is of no use."""
    try:
        places = search_path(bundle.path, folders)
        wanted = bundle.program.files[number]
        with find_data_file(wanted, bundle.path, places) as found:
            match_index(bundle, number, found)
            index_nbytes = found.header.tail_nbytes
            return FoundFile(found.path, found.size, index_nbytes, found.blobs)
    except DataFileMissing as error:
        text = f"it is not there; looked in: {error.folders}"
        if not is_spare(bundle.program, number):
            return text
        return f"{text}; the bundle works without: its weights are packed at load"
    except KvcError as error:
        return str(error)
