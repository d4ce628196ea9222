"""The file of a target: contexts of all graphs of a program, as built by the library.

    magic, 8 bytes | length of the header, 4 bytes | header, JSON | contexts, aligned

The header names the library and the target. For each graph, the header has the digest
of the graph's model, the graph's name in its context, and the location of the context.
The file comes from a bundle, so it is not trusted: this module checks the header before
the library reads any part of the file. The code within a context cannot be checked, so
contexts are used only if the caller requests the device.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from kvc.runtime.delegates.qnn.library import VERSIONS
from kvc.runtime.memory.arenas import align_up
from kvc.schema.frozen import frozen

MAGIC: Final = b"kvc-qnn\x02"  # the last byte is the version
_START: Final = len(MAGIC) + 4
MAX_HEADER_NBYTES: Final = 1 << 24
MAX_NAME: Final = 256  # characters of a graph's name


@frozen
class Stored:
    """A graph, and the context that has only this graph.

    Attributes:
        model: name of the model that the graph was built from.
        digest: digest of the model and its weights.
        graph: name of the graph in the context.
        content: the bytes of the context.
    """

    model: str
    digest: str
    graph: str
    content: bytes


class BadContexts(Exception):
    """Raised if a target's file is damaged, or not for the target.

    The message has the reason.
    """


def write_contexts(target: str, graphs: Sequence[Stored]) -> bytes:
    """Encode the file of a target."""
    described, at = {}, 0
    for one in graphs:
        described[one.model] = {
            "digest": one.digest,
            "graph": one.graph,
            "offset": at,
            "nbytes": len(one.content),
        }
        at = align_up(at + len(one.content))
    header = {"target": target, "library": VERSIONS, "graphs": described}
    raw = json.dumps(header, sort_keys=True).encode()
    found = bytearray(MAGIC + len(raw).to_bytes(4, "little") + raw)
    for one in graphs:
        found += bytes(align_up(len(found)) - len(found))
        found += one.content
    return bytes(found)


def read_contexts(raw: bytes, target: str) -> dict[str, Stored]:
    """Return the graphs of a file, by the names of their models.

    Raises:
        BadContexts: the file is damaged, or is not for this target and library.
    """
    header, start = _header(raw)
    if header.get("target") != target:
        raise BadContexts(f"it is for {header.get('target')!r}, not {target!r}")
    if header.get("library") != VERSIONS:
        raise BadContexts(f"it is for the library {header.get('library')!r}")
    graphs = header.get("graphs")
    if not isinstance(graphs, dict):
        raise BadContexts("its header names no graphs")
    return {name: _stored(name, one, raw, start) for name, one in graphs.items()}


def _header(raw: bytes) -> tuple[Mapping[str, object], int]:
    if raw[: len(MAGIC)] != MAGIC and raw.startswith(MAGIC[:-1]):
        raise BadContexts("another version of kvc has made it; pack the bundle again")
    if raw[: len(MAGIC)] != MAGIC:
        raise BadContexts("it does not begin as such a file does")
    nbytes = int.from_bytes(raw[len(MAGIC) : _START], "little")
    end = _START + nbytes
    if nbytes > MAX_HEADER_NBYTES or end > len(raw):
        raise BadContexts(f"a header of {nbytes} bytes in a file of {len(raw)}")
    try:
        header: object = json.loads(raw[_START:end])
    except (ValueError, RecursionError) as error:
        raise BadContexts(f"its header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise BadContexts("its header is no table")
    return header, align_up(end)


def _stored(model: str, described: object, raw: bytes, start: int) -> Stored:
    facts = described if isinstance(described, dict) else {}
    digest, graph = facts.get("digest"), facts.get("graph")
    offset, nbytes = facts.get("offset"), facts.get("nbytes")
    texts = isinstance(digest, str) and isinstance(graph, str)
    if not texts or not 0 < len(str(graph)) <= MAX_NAME or not str(graph).isascii():
        raise BadContexts(f"the entry of the graph {model[:MAX_NAME]!r} is not text")
    if type(offset) is not int or type(nbytes) is not int:
        raise BadContexts(f"the graph {model[:MAX_NAME]!r} has no offset")
    room = len(raw) - start
    if not (0 <= offset <= room and 0 < nbytes <= room - offset):
        raise BadContexts(f"the graph {model[:MAX_NAME]!r} lies outside of the file")
    content = raw[start + offset : start + offset + nbytes]
    return Stored(model, str(digest), str(graph), content)
