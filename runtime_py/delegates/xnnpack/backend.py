"""The run-time part of the backend `xnnpack`: the library, or the reference.

In: a block that `kvc.schema.backends.xnnpack` supports. Out: a handle that runs the
block with the library if it is installed, otherwise with the runtime's own kernels.
Library and kernels quantize activations per row for int8 and int4 linears, and compute
everything else in float32.
"""

import hashlib
import platform
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Final

from kvc.runtime.data import FreeableBuffer
from kvc.runtime.delegates.operands import where_of
from kvc.runtime.delegates.reference import ReferenceHandle
from kvc.runtime.delegates.table import delegate_of
from kvc.runtime.delegates.xnnpack.checks import check_ops, check_scales
from kvc.runtime.delegates.xnnpack.handles import XnnpackHandle
from kvc.runtime.delegates.xnnpack.identities import digest_in
from kvc.runtime.delegates.xnnpack.library import XNNPACK, Library, find_library
from kvc.runtime.delegates.xnnpack.statics import Copies, Statics
from kvc.runtime.delegates.xnnpack.weights import Weights
from kvc.runtime.execution.delegate import (
    Delegate,
    Handle,
    Options,
    Packing,
    library_unless,
)
from kvc.runtime.native.library import native_library
from kvc.schema.errors import BadProgram, MissingLibrary
from kvc.schema.model import Delegate as Partition
from kvc.schema.model import Program
from kvc.schema.uses import PACKED

# The name of the library's packing format on this machine.


_BUILD_DIGITS: Final = 12
_CPU: Final = Path("/proc/cpuinfo")
# CPU flags, in Linux's names, by which the library selects kernels on x86.
_FLAGS: Final = (
    *("ssse3", "sse4_1", "avx", "f16c", "fma", "avx2", "gfni"),
    *("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vbmi"),
    *("avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("avx_vnni", "avx_vnni_int8", "amx_int8"),
)
# Lines of /proc/cpuinfo for processors that are not x86: extensions and manufacturer.
_OTHERS: Final = re.compile(r"(?:Features|CPU (?:implementer|part|variant))\s*:.*")


def packed_format(library: Library) -> str:
    """Return the library's packing format on this machine, xnnpack:BUILD:FEATURES."""
    return f"xnnpack:{library.build[:_BUILD_DIGITS]}:{processor_features()}"


@cache
def processor_features() -> str:
    """Return the processor features that decide which kernels run, as text."""
    try:
        text = _CPU.read_text()
    except OSError:
        text = ""
    return describe_processor(platform.machine(), text)


def describe_processor(machine: str, text: str) -> str:
    """Return a word for a processor, from the text of its `/proc/cpuinfo`."""
    found = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    if found is not None:
        flags = set(found[1].split())
        return "+".join(flag for flag in _FLAGS if flag in flags) or machine
    lines = sorted(set(_OTHERS.findall(text)))
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return f"{machine}-{digest[:12]}"


def stored_names(program: Program, packed_format: str) -> Mapping[str, str]:
    """Return the names of data packed in a format, by their `entry_key`."""
    return {
        named.name.removeprefix(PACKED): named.name
        for named in program.names
        if named.format == packed_format
    }


# The backend `xnnpack`.


_NATIVE: Final = "cpu"  # the backend of kvc's own kernels


class Xnnpack(Delegate):
    """Runs float32 and dynamically quantized graphs."""

    runs_on = "the processor, by XNNPACK"
    needs = XNNPACK

    def __init__(self, options: Options) -> None:
        """Find the library, unless the reference is requested.

        Raises:
            MissingLibrary: the library is missing, and `options.reference` is False.
        """
        self._options = options
        self._library = library_unless(options.reference, find_library, "xnnpack")
        self._weights = None if self._library is None else self._take(self._library)
        self._copies = Copies()

    def _take(self, library: Library) -> Weights:
        """Return a new cache that finds the program's packed weights."""
        form = packed_format(library)
        return Weights(library, stored_names(self._options.program, form))

    @staticmethod
    def check_library() -> None:
        """Check that the library can be used.

        Raises:
            MissingLibrary: the library cannot be used.
        """
        find_library()

    @staticmethod
    def packed_format() -> str:
        """Return the library's packing format on this machine; see `Delegate`.

        Raises:
            MissingLibrary: the library cannot be used.
        """
        try:
            return packed_format(find_library())
        except MissingLibrary as error:
            features = f"this machine's FEATURES are {processor_features()}"
            reason = f"{error.reason} ({features})"
            raise XNNPACK.missing(reason) from error

    def init(self, partition: Partition, data: Mapping[str, FreeableBuffer]) -> Handle:
        """Check a partition, and return its handle; see `Delegate.init`."""
        program, path = self._options.program, self._options.path
        method = program.methods[partition.method]
        where = f"{path}: {where_of(program, partition)}"
        graph = method.blocks[partition.block].graph
        check_ops(graph, where)
        if self._library is None or self._weights is None:
            return ReferenceHandle(program, partition, data)
        statics = Statics(program, data, self._copies, self._weights)
        check_scales(graph, statics, program.names, where)
        what = f"method {method.name}, delegate {program.delegates.index(partition)}"
        threads = self._options.threads
        of_nothing = partial(self._handle_of_nothing, partition, data)
        return XnnpackHandle(
            graph, program.symbols, statics, self._weights, threads, what, of_nothing
        )

    def _handle_of_nothing(
        self, partition: Partition, data: Mapping[str, FreeableBuffer]
    ) -> Handle:
        """Return a handle for a partition that the library cannot run.

        If kvc's native kernels, which need no torch, support the whole partition, the
        handle uses these kernels; otherwise it uses the reference.
        """
        if native_library() is not None:
            with suppress(BadProgram):
                return delegate_of(_NATIVE)(self._options).init(partition, data)
        return ReferenceHandle(self._options.program, partition, data)

    def pack(self, handles: Mapping[int, Handle]) -> Sequence[Packing]:
        """Pack the weights of some partitions; see `Delegate`.

        The reference packs nothing.

        Raises:
            NativeCallFailed: the library refuses a partition.
            KvcError: the data of a weight cannot be read.
        """
        weights, used = self._weights, {}
        for partition, handle in handles.items():
            if isinstance(handle, XnnpackHandle):
                used[partition] = {identity.digest.hex() for identity in handle.pack()}
        if weights is None:
            return ()
        return tuple(
            Packing(
                key=entry.key,
                weight=entry.name,
                partitions=tuple(
                    i for i in sorted(used) if digest_in(entry.key) in used[i]
                ),
                nbytes=entry.nbytes,
                content=partial(weights.bytes_of, entry),
            )
            for entry in weights.entries()
            if entry.asked_for
        )

    def packed(self) -> Mapping[str, int]:
        """Return the number of packed or copied bytes of each weight, by data name."""
        total: Counter[str] = Counter(self._copies.nbytes())
        if self._weights is not None:
            total.update(self._weights.packed())
        return total

    def close(self) -> None:
        """Free packed weights; all contexts and handles have been closed."""
        if self._weights is not None:
            self._weights.close()
        self._copies.close()
