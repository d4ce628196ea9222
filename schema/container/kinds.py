"""Guess the kind of a file from its first bytes, for the message of `BadMagic`."""

import codecs
from typing import Final

# Magic bytes: one over 0x7f, CR LF, SUB and LF, since text-mode copies change one of
# them.
BUNDLE_MAGIC: Final = b"\x8bKVC\r\n\x1a\n"
DATA_MAGIC: Final = b"\x8bKVD\r\n\x1a\n"
SESSION_MAGIC: Final = b"\x89KVCS\r\n\n"
ADAPTER_MAGIC: Final = b"\x89KVCA\r\n\n"
# Magic bytes of ExecuTorch files; they follow four other bytes.
PTE_MARK: Final = b"ET12"
PTD_MARK: Final = b"FT01"

_KINDS: Final = (
    (BUNDLE_MAGIC, "a kvc bundle (.kvc)"),
    (
        DATA_MAGIC,
        "the data file of a kvc bundle (.kvd): give the .kvc file that uses it",
    ),
    (
        SESSION_MAGIC,
        "a saved session: `kvc dump` says of which bundle, `kvc run BUNDLE --session` "
        "goes on with it",
    ),
    (
        ADAPTER_MAGIC,
        "an adapter of a kvc bundle (.kva): `program.adapters.load` or `--adapter` "
        "loads it beside its bundle",
    ),
    (b"GGUF", "a GGUF model (llama.cpp)"),
    (b"PK\x03\x04", "a zip archive: a .pt, .pt2 or other PyTorch file"),
    (
        b"version https://git-lfs",
        "a Git LFS pointer: run `git lfs pull` to fetch the file",
    ),
    (b"\x7fELF", "a program or shared library"),
    *((bytes((0x80, version)), "a Python pickle") for version in range(2, 6)),
    (b"\x93NUMPY", "a numpy array"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x1f\x8b", "a gzip file: unpack it first"),
    (b"(\xb5/\xfd", "a zstd file: unpack it first"),
)


def guess_kind(head: bytes) -> str:
    """Return a description of a file's kind, guessed from its first bytes.

    Args:
        head: the first bytes of the file, up to 128.
    """
    if not head:
        return "an empty file"
    if not any(head):
        return "zeros: a download or a copy that never finished"
    for start, kind in _KINDS:
        if head.startswith(start):
            return kind
    if b"KVC" in head[:6] or b"KVD" in head[:6]:
        return "a kvc file that was damaged, perhaps by a copy in text mode"
    return _guess_deeper(head)


def _guess_deeper(head: bytes) -> str:
    if head[4:8] in (PTE_MARK, PTD_MARK):
        what = "program (.pte)" if head[4:8] == PTE_MARK else "data file (.ptd)"
        return f"an ExecuTorch {what}: `kvc dump` describes it"
    if head[4:6] == b"ET" or head[4:8] == b"eh00":
        return "an ExecuTorch program (.pte) of another schema than kvc knows"
    if head[4:8] in (b"KVCP", b"KVCX", b"KVCD"):
        return "a part of a kvc file without its container"
    if head[4:8] == b"TFL3":
        return "a LiteRT model (.tflite)"
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 100_000_000:
        return "a safetensors file: give its folder to `kvc compile`"
    text = head.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "a web page: the download did not get the file itself"
    if text.startswith((b"{", b"[")):
        return "a JSON text"
    if _is_text(head):
        return "a text file"
    if b"onnx" in text or b"pytorch" in text[:64]:
        return "an ONNX model"
    return "nothing that kvc knows"


def _is_text(head: bytes) -> bool:
    """Tell whether bytes begin a UTF-8 text; the last character may be incomplete."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return all(byte >= 32 or byte in b"\t\n\r\f" for byte in head)
