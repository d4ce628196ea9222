"""Bundles and data files: written atomically, read with checks.

A bundle is header, blobs and program; a data file is header, blobs and index. The
layout is described in FORMAT.md. Modules for opening a bundle are imported here; all
other modules are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from kvc.schema.container.bundle_file import BundleFile, DataFileReader
from kvc.schema.container.header import (
    HEADER_NBYTES,
    Header,
    align_up,
    default_align,
    pack_header,
)
from kvc.schema.container.kinds import ADAPTER_MAGIC, SESSION_MAGIC, guess_kind
from kvc.schema.container.lookup import find_data_file, is_spare, search_path
from kvc.schema.container.open_file import OpenFile, is_session, path_text
from kvc.schema.container.stored_blobs import StoredBlobs, match_index

if TYPE_CHECKING:
    from kvc.schema.container.garbage_collection import (
        Collected,
        Failure,
        Garbage,
        collect_garbage,
        unreferenced,
    )
    from kvc.schema.container.reused import check_reuse
    from kvc.schema.container.save import (
        Accept,
        Contents,
        Progress,
        SavedBundle,
        foretold_nbytes,
        save_bundle,
    )
    from kvc.schema.container.split import join_bundle, split_bundle, stored_contents
    from kvc.schema.container.store_once import Content
    from kvc.schema.container.temporary import AtomicFile, why_not_replaced
    from kvc.schema.container.verify import (
        Verified,
        verify_bundle,
        verify_data_file,
        verify_file,
    )

# Names for writing or verifying files, by the module that defines them.
_ON_DEMAND: Final = {
    "store_once": ("Content",),
    "garbage_collection": (
        "Collected",
        "Failure",
        "Garbage",
        "collect_garbage",
        "unreferenced",
    ),
    "reused": ("check_reuse",),
    "save": (
        "Accept",
        "Contents",
        "Progress",
        "SavedBundle",
        "foretold_nbytes",
        "save_bundle",
    ),
    "split": ("join_bundle", "split_bundle", "stored_contents"),
    "temporary": ("AtomicFile", "why_not_replaced"),
    "verify": ("Verified", "verify_bundle", "verify_data_file", "verify_file"),
}

__all__ = [
    "ADAPTER_MAGIC",
    "HEADER_NBYTES",
    "SESSION_MAGIC",
    "Accept",
    "AtomicFile",
    "BundleFile",
    "Collected",
    "Content",
    "Contents",
    "DataFileReader",
    "Failure",
    "Garbage",
    "Header",
    "OpenFile",
    "Progress",
    "SavedBundle",
    "StoredBlobs",
    "Verified",
    "align_up",
    "check_reuse",
    "collect_garbage",
    "default_align",
    "find_data_file",
    "foretold_nbytes",
    "guess_kind",
    "is_session",
    "is_spare",
    "join_bundle",
    "match_index",
    "pack_header",
    "path_text",
    "save_bundle",
    "search_path",
    "split_bundle",
    "stored_contents",
    "unreferenced",
    "verify_bundle",
    "verify_data_file",
    "verify_file",
    "why_not_replaced",
]


def __getattr__(name: str) -> object:
    """Import a name in `_ON_DEMAND` on first use; opening a bundle needs none."""
    for module, names in _ON_DEMAND.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
