"""Requests to the subprocess that calls Qualcomm's library; `serving.py` has others.

    build   make a graph of a model in the folder, in the context shared by all graphs
    store   make a separate context of a model, as a file of the folder
    load    load a graph from a context in the folder

This module imports nothing of kvc, and kvc's process does not import it, so a crash of
the library ends only the subprocess.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import onnxruntime
import onnxruntime_qnn

_PROVIDER: Final = "QNNExecutionProvider"
_CONTEXT: Final = {"ep.context_enable": "1", "ep.context_embed_mode": "0"}
Arrays = Mapping[str, Any]  # over shared memory, by name


class Work:
    """Graphs that the library has loaded."""

    def __init__(self) -> None:
        """Load the library."""
        self._sessions: dict[str, Any] = {}
        onnxruntime.register_execution_provider_library(
            _PROVIDER, onnxruntime_qnn.get_library_path()
        )
        self._devices = [
            one for one in onnxruntime.get_ep_devices() if one.ep_name == _PROVIDER
        ]
        if not self._devices:
            raise RuntimeError("the library finds no device")

    def build(self, name: str, model: str, arch: int) -> None:
        """Build a graph in the context that all graphs of this process share."""
        file = {"ep.context_file_path": f"{name}.shared.onnx"}
        shared = _CONTEXT | file | {"ep.share_ep_contexts": "1"}
        self._sessions[name] = self._session(model, arch, shared)

    def store(self, name: str, model: str, arch: int) -> str:
        """Build a separate context, `NAME_qnn.bin`; return the graph's name in it."""
        file = {"ep.context_file_path": f"{name}.onnx"}
        self._session(model, arch, _CONTEXT | file)
        return graph_name(Path(f"{name}.onnx").read_bytes())

    def load(self, name: str, model: str, arch: int) -> None:
        """Load a graph from a context."""
        self._sessions[name] = self._session(model, arch, {})

    def bind(self, name: str, inputs: Arrays, outputs: Arrays) -> Callable[[], None]:
        """Return a function that runs a graph on arrays, which the caller keeps."""
        session = self._sessions[name]
        binding = session.io_binding()
        pairs = (inputs, binding.bind_input), (outputs, binding.bind_output)
        for arrays, bind in pairs:
            for each, a in arrays.items():
                bind(each, "cpu", 0, a.dtype.type, a.shape, a.ctypes.data)
        return partial(session.run_with_iobinding, binding)

    def _session(self, model: str, arch: int, entries: Mapping[str, str]) -> Any:  # noqa: ANN401  # a class of the library
        """Return a session in which the library, not ONNX Runtime, computes all nodes.

        If there is no device, the library's emulator of the device runs on this
        processor.
        """
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        for key, value in entries.items():
            options.add_session_config_entry(key, value)
        library = onnxruntime_qnn.get_qnn_htp_path()
        settings = {"backend_path": library, "htp_arch": str(arch)}
        options.add_provider_for_devices(self._devices, settings)
        return onnxruntime.InferenceSession(model, options)


def graph_name(model: bytes) -> str:
    """Return the name of a graph, from the bytes of its context's model."""
    for attribute in _parts(_parts(_parts([model], 7), 1), 5):
        facts = dict(_fields(attribute))
        if facts.get(1) == b"partition_name" and facts.get(4):
            return facts[4].decode()
    raise RuntimeError("the library has not written a graph's name")


def _parts(messages: Iterable[bytes], wanted: int) -> list[bytes]:
    """Return the contents of all fields with a number in some messages."""
    fields = (field for message in messages for field in _fields(message))
    return [content for number, content in fields if number == wanted]


def _fields(message: bytes) -> list[tuple[int, bytes]]:
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
