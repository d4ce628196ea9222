"""The name of the form that the library packs to on this machine.

Two machines with the same name are expected to pack alike. The library's fingerprint,
known only after packing, is part of each packed weight's key.
"""

import hashlib
import platform
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from kvc.runtime.delegates.xnnpack.library import Library
from kvc.schema.model import Program
from kvc.schema.uses import PACKED

_BUILD_DIGITS: Final = 12
_CPU: Final = Path("/proc/cpuinfo")
# What the library chooses kernels by on x86, as Linux calls it.
_FLAGS: Final = (
    *("ssse3", "sse4_1", "avx", "f16c", "fma", "avx2", "gfni"),
    *("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vbmi"),
    *("avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("avx_vnni", "avx_vnni_int8", "amx_int8"),
)
# What Linux says of other processors: their extensions, and who made which.
_OTHERS: Final = re.compile(r"(?:Features|CPU (?:implementer|part|variant))\s*:.*")


def packed_format(library: Library) -> str:
    """Return the format, xnnpack:BUILD:FEATURES, of what a library packs here."""
    return f"xnnpack:{library.build[:_BUILD_DIGITS]}:{processor_features()}"


@cache
def processor_features() -> str:
    """Return what the processor has that kernels are chosen by, in plain characters."""
    try:
        text = _CPU.read_text()
    except OSError:
        text = ""
    return describe_processor(platform.machine(), text)


def describe_processor(machine: str, text: str) -> str:
    """Return what `/proc/cpuinfo` says of a kind of machine, as one word."""
    found = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    if found is not None:
        flags = set(found[1].split())
        return "+".join(flag for flag in _FLAGS if flag in flags) or machine
    lines = sorted(set(_OTHERS.findall(text)))
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return f"{machine}-{digest[:12]}"


def stored_names(program: Program, packed_format: str) -> Mapping[str, str]:
    """Return the names of data that is packed in a format, by the keys of packings."""
    return {
        named.name.removeprefix(PACKED): named.name
        for named in program.names
        if named.format == packed_format
    }
