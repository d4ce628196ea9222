"""The bundle as a file: header, blobs, program; written atomically, read with checks.

The layout is described in FORMAT.md.
"""

from kvc.schema.container.atomic import AtomicFile
from kvc.schema.container.header import HEADER_NBYTES, Header, pack_header
from kvc.schema.container.layout import Layout, align_up, default_align
from kvc.schema.container.reader import BundleFile, verify_bundle
from kvc.schema.container.writer import BundleWriter

__all__ = [
    "HEADER_NBYTES",
    "AtomicFile",
    "BundleFile",
    "BundleWriter",
    "Header",
    "Layout",
    "align_up",
    "default_align",
    "pack_header",
    "verify_bundle",
]
