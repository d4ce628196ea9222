"""Requests to the subprocess that calls Qualcomm's library; see `serving.py`.

    open    load the library: paths of Python's packages, the folder to work in
    build   make a graph of a model in the folder, in the context shared by all graphs
    store   make a separate context of a model, as a file of the folder
    load    load a graph from a context in the folder
    bind    set the locations of a graph's inputs and outputs in shared memory
    run     run a bound graph
    forget  release a bound graph

This module imports nothing of kvc, so a crash of the library ends only the subprocess.
"""

import mmap
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

_PROVIDER: Final = "QNNExecutionProvider"
Place = tuple[str, int, int, list[int]]  # of a tensor, see `bind`
Request = dict[str, Any]


class Work:
    """Graphs that the library has loaded, and their bindings."""

    def __init__(self) -> None:
        self.folder = ""
        self._runtime: Any = None
        self._devices: Sequence[Any] = ()
        self._library = ""
        self._sessions: dict[str, Any] = {}
        self._bound: dict[int, tuple[Any, Any, mmap.mmap]] = {}

    def open(self, paths: list[str], folder: str) -> None:
        """Load the library."""
        sys.path[:] = paths
        os.chdir(folder)
        self.folder = folder
        import onnxruntime
        import onnxruntime_qnn

        self._runtime, self._library = onnxruntime, onnxruntime_qnn.get_qnn_htp_path()
        onnxruntime.register_execution_provider_library(
            _PROVIDER, onnxruntime_qnn.get_library_path()
        )
        found = onnxruntime.get_ep_devices()
        self._devices = [one for one in found if one.ep_name == _PROVIDER]
        if not self._devices:
            raise RuntimeError("the library finds no device")

    def build(self, name: str, model: str, arch: int) -> None:
        """Build a graph in the context that all graphs of this process share."""
        entries = {
            "ep.context_enable": "1",
            "ep.context_embed_mode": "0",
            "ep.context_file_path": f"{name}.shared.onnx",
            "ep.share_ep_contexts": "1",
        }
        self._sessions[name] = self._session(model, arch, entries)

    def store(self, name: str, model: str, arch: int) -> str:
        """Build a separate context, `NAME_qnn.bin`; return the graph's name in it."""
        entries = {
            "ep.context_enable": "1",
            "ep.context_embed_mode": "0",
            "ep.context_file_path": f"{name}.onnx",
        }
        self._session(model, arch, entries)
        return graph_name(Path(f"{name}.onnx").read_bytes())

    def load(self, name: str, model: str, arch: int) -> None:
        """Load a graph from a context."""
        self._sessions[name] = self._session(model, arch, {})

    def bind(
        self,
        memory: int,
        name: str,
        number: int,
        nbytes: int,
        inputs: list[Place],
        outputs: list[Place],
    ) -> None:
        """Set the locations of inputs and outputs.

        Each input and output is given by name, dtype (a number of
        `TensorProto.DataType`), offset and shape.
        """
        import ctypes

        session = self._sessions[name]
        held = mmap.mmap(memory, nbytes)
        os.close(memory)
        base = ctypes.addressof(ctypes.c_char.from_buffer(held))
        binding = session.io_binding()
        for each, kind, offset, shape in inputs:
            binding.bind_input(each, "cpu", 0, kind, shape, base + offset)
        for each, kind, offset, shape in outputs:
            binding.bind_output(each, "cpu", 0, kind, shape, base + offset)
        self._bound[number] = session, binding, held

    def run(self, number: int) -> None:
        """Run a bound graph."""
        session, binding, _ = self._bound[number]
        session.run_with_iobinding(binding)

    def forget(self, number: int) -> None:
        """Release a bound graph."""
        self._bound.pop(number, None)

    def _session(self, model: str, arch: int, entries: Mapping[str, str]) -> Any:  # noqa: ANN401  # a class of the library
        """Return a session in which the library, not ONNX Runtime, computes all nodes.

        If there is no device, the library's emulator of the device runs on this
        processor.
        """
        options = self._runtime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        for key, value in entries.items():
            options.add_session_config_entry(key, value)
        settings = {"backend_path": self._library, "htp_arch": str(arch)}
        options.add_provider_for_devices(self._devices, settings)
        return self._runtime.InferenceSession(model, options)


def graph_name(model: bytes) -> str:
    """Return the name of a graph, from the bytes of its context's model."""
    for number, graph in _fields(model):
        if number == 7:
            for inner, node in _fields(graph):
                if inner == 1:
                    found = _attribute(node, b"partition_name")
                    if found:
                        return found.decode()
    raise RuntimeError("the library has not written a graph's name")


def _attribute(node: bytes, wanted: bytes) -> bytes:
    for number, attribute in _fields(node):
        if number == 5:
            parts = dict(_fields(attribute))
            if parts.get(1) == wanted:
                return parts.get(4, b"")
    return b""


def _fields(message: bytes) -> "list[tuple[int, bytes]]":
    """Return (number, content) of each length-delimited field; skip others."""
    at, found = 0, []
    while at < len(message):
        key, at = _varint(message, at)
        match key & 7:
            case 0:
                _, at = _varint(message, at)
            case 1:
                at += 8
            case 5:
                at += 4
            case 2:
                length, at = _varint(message, at)
                found.append((key >> 3, message[at : at + length]))
                at += length
            case _:
                raise RuntimeError("the library has written no model")
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
