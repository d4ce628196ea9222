"""`kvc dump` of files that ExecuTorch wrote, beside what ExecuTorch reads in them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvc.schema.errors import BadStructure, KvcError
from kvc.tools.executorch import describe_executorch
from kvc.tools.executorch.contents import check_data
from kvc.tools.executorch.reading import read_pte
from kvc.tools.executorch.tables import Buffer

FILES = Path(__file__).parent / "files"
SAID = json.loads((FILES / "said.json").read_text())
DTYPES = {"FLOAT": "float32", "LONG": "int64", "BOOL": "bool"}
TABLES = ("size", "memory", "states", "copies", "blobs", "delegates")


def pte(name):
    return str(FILES / f"{name}.pte")


@pytest.mark.parametrize("name", SAID)
def test_it_reads_what_executorch_reads(name):
    found = read_pte(pte(name))
    named = {key: found.segments[segment].nbytes for key, segment in found.named}
    assert named == SAID[name]["named"]
    for method, said in zip(found.methods, SAID[name]["methods"], strict=True):
        tensors = {
            str(index): [value.tensor.dtype, list(value.tensor.sizes), memory(value)]
            for index, value in enumerate(method.values)
            if value.tensor
        }
        expected = {i: [DTYPES[t], *rest] for i, (t, *rest) in said["tensors"].items()}
        assert tensors == expected
        assert [method.name, *map(list, (method.inputs, method.outputs))] == [
            said["name"],
            said["inputs"],
            said["outputs"],
        ]
        assert list(method.buffers) == said["buffers"]
        assert len(method.calls) == said["calls"]
        kernels = [call for call in method.calls if call.kind == "kernel"]
        assert [
            [method.operators[call.what], list(call.args)] for call in kernels
        ] == said["kernels"]
        payloads = [
            [one.backend, found.segments[one.segment].nbytes]
            for one in method.delegates
        ]
        assert payloads == said["delegates"]


def memory(value):
    return list(value.tensor.memory) if value.tensor.memory else None


@pytest.mark.parametrize("path", sorted(FILES.glob("*.pt[ed]")), ids=lambda p: p.name)
def test_every_byte_of_the_file_has_a_place(kvc, path):
    size = json.loads(kvc("dump", path, "--size", "--json").stdout)["size"]
    assert sum(part["nbytes"] for part in size["parts"]) == path.stat().st_size
    assert min(part["nbytes"] for part in size["parts"]) > 0


def test_states_are_what_is_read_before_it_is_written(kvc):
    states = json.loads(kvc("dump", pte("state"), "--states", "--json").stdout)
    shown = [(s["type"], s["written"], s["copied"]) for s in states["states"]]
    assert shown == [
        ("float32[1, 8, 4]", ["aten::copy_"], 128),
        ("int64[1]", ["aten::copy_"], 8),
    ]
    assert describe_executorch(pte("choice"))[0].states == ()


def test_the_overview_answers_at_a_glance(kvc):
    lines = kvc("dump", pte("delegate")).stdout.splitlines()
    for line in (
        "  forward(float32[1, 1, 4]) -> float32[1, 4]",
        "      7 instructions, 2 calls of XnnpackBackend",
        "STATE, 136 B that calls read before they write it",
        "  forward %0  float32[1, 8, 4]  128 B  overwritten whole in each call",
        "  80 B with names: 2 names",
        "  forward  400 B  29.9% more than is ever in use at one moment",
    ):
        assert line in lines, line
    assert "  2 tensors in other files (proj.weight, proj.bias)" in (
        kvc("dump", pte("external")).stdout.splitlines()
    )


def test_a_data_file_has_names_and_types(kvc):
    text = kvc("dump", FILES / "_default_external_constant.ptd", "--blobs").stdout
    assert "     64        0  float32[4, 4]  proj.weight" in text.splitlines()


def test_copies_and_code_of_a_method(kvc):
    text = kvc("dump", pte("choice"), "--ops", "forward").stdout
    assert "     2 | jump unless %5, to 7" in text.splitlines()
    assert "aten::mul.out(%0, %9, %12) -> %12: float32[4] at 1:0" in text
    copies = json.loads(kvc("dump", pte("state"), "--copies", "--json").stdout)
    assert copies["updates"][0] == {
        "method": "forward",
        "operator": "aten::copy_",
        "calls": 2,
        "nbytes": 136,
    }


def test_json_has_all_and_the_tables_that_are_asked_for(kvc):
    whole = json.loads(kvc("dump", pte("methods"), "--json").stdout)
    assert [one["name"] for one in whole["methods"]] == [
        "decode",
        "prefill",
        "most_rows",
    ]
    assert whole["methods"][1]["inputs"] == ["float32[16, 8] at most"]
    asked = kvc("dump", pte("methods"), "--delegates", "--ops", "decode", "--json")
    assert list(json.loads(asked.stdout)) == ["version", "delegates", "ops"]


def test_what_such_a_file_cannot_tell_is_refused(kvc):
    assert "are of bundles alone" in kvc("dump", pte("state"), "--at", "seq=4").output
    assert "it has: forward" in kvc("dump", pte("state"), "--ops", "b").output
    assert "`kvc dump` describes it" in kvc("verify", pte("state")).output


@pytest.mark.parametrize("name", ["choice.pte", "_default_external_constant.ptd"])
def test_a_damaged_file_is_described_or_refused(kvc, tmp_path, name):
    content, path = (FILES / name).read_bytes(), tmp_path / name
    refused = 0
    for place in range(8, len(content), 3):
        damaged = bytearray(content)
        damaged[place] ^= (1, 0x80, 0xFF)[place // 3 % 3]
        path.write_bytes(damaged)
        try:
            report, _ = describe_executorch(str(path))
        except KvcError:
            refused += 1
        else:
            sizes = [part.nbytes for part in report.size.parts]
            assert sum(sizes) == len(content)
            assert min(sizes) > 0
    assert refused > 10
    for length in (0, 8, 20, 40, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        assert kvc("dump", path).exit_code == 1


def test_overlapping_segments_are_refused(tmp_path):
    content = bytearray((FILES / "methods.pte").read_bytes())
    *_, other, last = read_pte(pte("methods")).segments
    at = content.index(last.offset.to_bytes(8, "little"))
    content[at : at + 8] = other.offset.to_bytes(8, "little")
    path = tmp_path / "m.pte"
    path.write_bytes(content)
    with pytest.raises(BadStructure, match="two segments overlap"):
        read_pte(str(path))


def test_methods_of_one_name_are_refused():
    found = read_pte(pte("methods"))
    same = tuple(replace(method, name="forward") for method in found.methods)
    with pytest.raises(BadStructure, match="two methods have the same name"):
        check_data(replace(found, methods=same), Buffer(b"", found.path))


def test_names_are_escaped(kvc, tmp_path):
    path = tmp_path / "m.pte"
    path.write_bytes(
        (FILES / "state.pte").read_bytes().replace(b"forward", b"for\x1b[m!")
    )
    for arguments in ([], *([f"--{table}"] for table in TABLES)):
        assert "\x1b" not in kvc("dump", path, *arguments).output


def test_a_program_larger_than_can_be_is_not_read(kvc, tmp_path):
    path = tmp_path / "m.pte"
    content = bytearray((FILES / "choice.pte").read_bytes())
    content[16:32] = (1 << 32).to_bytes(8, "little") * 2
    with path.open("wb") as file:
        file.write(content)
        file.truncate(1 << 33)  # takes no room on disk
    assert "more than the limit of 2147483647" in kvc("dump", path).output
