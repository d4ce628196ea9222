"""The file of a target: what is read is what was written, or refused."""

import json
from collections.abc import Callable

import pytest

from kvc.runtime.delegates.qnn import context_file
from kvc.runtime.delegates.qnn.context_file import (
    MAGIC,
    BadContexts,
    Stored,
    read_contexts,
    write_contexts,
)

GRAPHS = [Stored("p0_1", "ab", "one", b"x" * 70), Stored("p0_4", "cd", "two", b"yz")]


def test_graphs_are_read_as_they_were_written():
    raw = write_contexts("v75", GRAPHS)
    assert list(read_contexts(raw, "v75").values()) == GRAPHS
    assert write_contexts("v75", GRAPHS) == raw


def with_header(change: Callable[[dict], object]) -> bytes:
    raw = write_contexts("v75", GRAPHS)
    size = int.from_bytes(raw[8:12], "little")
    header = json.loads(raw[12 : 12 + size])
    changed = change(header)
    text = json.dumps(header if changed is None else changed, sort_keys=True).encode()
    return raw[:8] + len(text).to_bytes(4, "little") + text + raw[12 + size :]


def graph(**facts: object) -> Callable[[dict], object]:
    return lambda header: header["graphs"]["p0_1"].update(facts)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda h: h.update(target="v73"), "it is for 'v73', not 'v75'"),
        (lambda h: h.update(library={"onnxruntime": "1.0"}), "for the library"),
        (lambda h: h.update(graphs=[1]), "names no graphs"),
        (lambda h: [h], "no table"),
        (lambda h: h["graphs"].update(p0_1=3), "is not text"),
        (graph(digest=1), "is not text"),
        (graph(graph=""), "is not text"),
        (graph(graph="n" * 257), "is not text"),
        (graph(graph="é"), "is not text"),
        (graph(offset=True), "has no offset"),
        (graph(nbytes="3"), "has no offset"),
        (graph(offset=-1), "outside of the file"),
        (graph(offset=1 << 62), "outside of the file"),
        (graph(nbytes=0), "outside of the file"),
        (graph(nbytes=1 << 62), "outside of the file"),
    ],
)
def test_a_wrong_header_is_refused(change: Callable[[dict], object], what: str):
    with pytest.raises(BadContexts, match=what):
        read_contexts(with_header(change), "v75")


def test_a_wrong_beginning_is_refused(monkeypatch: pytest.MonkeyPatch):
    raw = write_contexts("v75", GRAPHS)
    with pytest.raises(BadContexts, match="another version of kvc"):
        read_contexts(MAGIC[:-1] + b"\x01" + write_contexts("v75", GRAPHS)[8:], "v75")
    with pytest.raises(BadContexts, match="does not begin"):
        read_contexts(b"KVC" + raw, "v75")
    for short in (b"", MAGIC, raw[:40]):
        with pytest.raises(BadContexts):
            read_contexts(short, "v75")
    with pytest.raises(BadContexts, match="no JSON"):
        read_contexts(raw[:12] + b"[" * (len(raw) - 12), "v75")
    monkeypatch.setattr(context_file, "MAX_HEADER_NBYTES", 16)
    with pytest.raises(BadContexts, match="a header of"):
        read_contexts(raw, "v75")
