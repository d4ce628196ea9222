import json
import re
from dataclasses import replace

import pytest
from golden import assert_golden
from named_bytes import SMALL, save_data
from sample_programs import sample_program
from sealing import parts, seal

from kvc.runtime import generate, load
from kvc.schema.codec import encode
from kvc.schema.container import BundleFile
from kvc.tools.reports.methods import DelegateReport
from kvc.tools.reports.tables import delegate_lines


def test_the_overview_answers_at_a_glance(kvc, sample):
    text = kvc("dump", sample).stdout
    for line in (
        "  decode(x: float32[1, 1, 8]) -> float32[1], float32[1, 1, 8]",
        "      1 <= seq <= 8",
        "  cache     float32[1, 16, 8]  linear   512 B  prefill rw, decode rw",
        "  position: counted by the state position; at most 16 tokens",
        "  4 updates of states, 2 by copy: 16 B if each method is called once "
        "(kvc dump --copies)",
        "  prefill + decode, shared  288 B  2 blobs",
        "  296 B stored once; 584 B if methods kept their own",
    ):
        assert line in text.splitlines(), line


def test_the_overview_tells_roles(kvc, tiny):
    lines = kvc("dump", tiny).stdout.splitlines()
    told = [line.rsplit("   ", 1)[1] for line in lines if "   role " in line]
    assert told == ["role prefill", "role decode"]


def test_the_overview_fits_a_terminal(kvc, sample, monkeypatch):
    monkeypatch.chdir(sample.parent)
    lines = kvc("dump", sample.name).stdout.splitlines()
    assert max(len(line) for line in lines) <= 100


VIEWS = (
    *("", "--states", "--copies", "--blobs", "--memory", "--size", "--delegates"),
    *("--ops decode", "--at seq=2,tokens=5", "--what-if"),
)


def test_all_views_read_as_they_did(kvc, sample, monkeypatch):
    monkeypatch.chdir(sample.parent)
    told = [
        f"$ kvc dump {sample.name} {view}".rstrip()
        + f"\n{kvc('dump', sample.name, *view.split()).stdout}"
        for view in VIEWS
    ]
    assert_golden("kvc_dump", "\n".join(told))


@pytest.mark.parametrize(
    "view", [["--states"], ["--blobs"], ["--memory"], ["--size", "--full"]]
)
def test_every_number_on_the_screen_is_a_field(kvc, tiny, view):
    """Of those of four digits or more; blobs are also added up."""
    everything = json.loads(kvc("dump", tiny, "--json").stdout)
    shown = re.findall(r"(?<![\w.])\d{1,3}(?:,\d{3})+", kvc("dump", tiny, *view).stdout)
    assert shown
    told = set(numbers_of(everything))
    told.add(sum(one["nbytes"] for one in everything["blobs"]))
    assert {int(number.replace(",", "")) for number in shown} <= told


def numbers_of(value):
    """Yield all whole numbers in a value of JSON."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from numbers_of(one)
    elif isinstance(value, int):
        yield value


def test_every_byte_of_the_file_has_a_place(kvc, sample):
    size = json.loads(kvc("dump", sample, "--size", "--json").stdout)["size"]
    assert size["nbytes"] == sample.stat().st_size
    assert sum(part["nbytes"] for part in size["parts"]) == size["nbytes"]
    assert min(part["nbytes"] for part in size["parts"]) > 0


def test_the_size_of_blobs_by_their_names(kvc, sample):
    lines = kvc("dump", sample, "--size").stdout.splitlines()
    start = lines.index("") + 1
    assert lines[start].split()[:4] == ["bytes", "share", "blobs", "type"]
    *rows, total = (line.split() for line in lines[start + 1 :])
    assert sum(int(row[0].replace(",", "")) for row in rows) == int(total[0])
    assert ["32", "10.8%", "1", "float32", "bias"] in rows


def test_copies_as_json(kvc, sample):
    assert json.loads(kvc("dump", sample, "--copies", "--json").stdout) == {
        "version": 3,
        "updates": [
            {
                "method": method,
                "state": state,
                "verdict": verdict,
                "bytes_per_call": nbytes,
                "reason": reason,
                "source": source,
            }
            for method in ("prefill", "decode")
            for state, verdict, nbytes, reason, source in (
                ("cache", "SAFE", 0, "", "model:13 (layers.0)"),
                ("position", "COPY", 8, "it is computed beside the old value", ""),
            )
        ],
    }


def test_blobs_say_who_shares_them(kvc, sample):
    blobs = json.loads(kvc("dump", sample, "--blobs", "--json").stdout)["blobs"]
    bias = next(blob for blob in blobs if blob["names"][0]["name"] == "bias")
    assert bias["nbytes"] == 32
    assert bias["methods"] == ["prefill", "decode"]
    assert bias["names"][0]["users"] == ["prefill", "prefill/sample", "decode"]
    assert "prefill, prefill/sample, decode" in kvc("dump", sample, "--blobs").stdout


def test_states_say_who_reads_and_writes_them(kvc, sample):
    states = json.loads(kvc("dump", sample, "--states", "--json").stdout)["states"]
    assert [s["name"] for s in states] == ["cache", "position"]
    assert states[0]["kind"] == "linear"
    assert states[0]["nbytes"] == 512
    assert states[1]["initial"] == "start"
    assert states[0]["reads"] == states[0]["writes"] == ["prefill", "decode"]


def test_memory_names_the_bounds_and_the_formula(kvc, sample):
    text = kvc("dump", sample, "--memory").stdout
    assert "  1 <= seq <= 8; planned at 8\n" in text
    assert "      64*seq + 4 bytes\n" in text
    memory = json.loads(kvc("dump", sample, "--memory", "--json").stdout)["memory"]
    assert memory["methods"][0]["workspaces"] == [
        {"backend": "sample", "kind": "planned", "nbytes": 256}
    ]


def test_ops_go_into_delegates(kvc, sample):
    lines = kvc("dump", sample, "--ops", "prefill").stdout.splitlines()
    assert lines[0] == "method prefill"
    copied = "     6  %11 = aten::copy(%4, %10): int64[1] in %4  # writes %4 ANYWHERE"
    assert copied in lines
    call = next(i for i, line in enumerate(lines) if "kvc::delegate" in line)
    inside = lines[call + 1 : call + 6]
    assert all(line.startswith("          | ") for line in inside)
    assert inside[0] == "          | block 0, run by the backend sample"
    assert "|   %0 = input (the %5 around it)" in inside[1]
    assert "aten::add.Tensor(%0, %1, 1)" in inside[3]


def test_the_overview_explains_its_words(kvc, sample):
    text = kvc("dump", sample).stdout
    for part in (
        "bundles of equal content have equal digests",
        "kept between calls (r: reads, w: writes)",
        "; reads and writes 2 states\n",
        "DELEGATES, partitions of a method that a backend runs\n",
        "1 instruction ",
        "memory, laid out by kvc: 256 B",
    ):
        assert part in text, part


def test_everything_as_json(kvc, sample):
    report = json.loads(kvc("dump", sample, "--json").stdout)
    assert report["version"] == 3
    assert list(report)[1:] == [
        "file",
        "cost",
        "methods",
        "states",
        "position",
        "updates",
        "sharing",
        "adapters",
        "blobs",
        "delegates",
        "operators",
        "memory",
        "size",
        "metadata",
        "recipes",
    ]


def test_several_tables_at_once(kvc, sample):
    text = kvc("dump", sample, "--size", "--states", "--ops", "decode").stdout
    assert "the file" in text
    assert "starts as" in text
    assert "\n\nmethod decode\n" in text


def test_an_unknown_method_lists_those_that_exist(kvc, sample):
    result = kvc("dump", sample, "--ops", "x")
    assert result.exit_code == 1
    assert "no method 'x'; it has: prefill, decode" in result.stderr


def test_names_cannot_command_the_terminal(kvc, sample, monkeypatch):
    """The verifier refuses such names; the reports do not rely on it."""
    hostile = sample_program()
    states = tuple(replace(s, name=f"\x1b[2J{s.name}") for s in hostile.states)
    hostile = replace(hostile, states=states, metadata={"\x1b[31m": '"\u202e"'})
    with BundleFile.open(sample) as bundle:
        blobs = bundle.program.blobs
    hostile = replace(hostile, blobs=blobs)
    monkeypatch.setattr(BundleFile, "_read_program", lambda self, thorough: hostile)
    options = [[], ["--states"], ["--copies"], ["--ops", "decode"], ["--memory"]]
    shown = [kvc("dump", sample, *option).stdout for option in options]
    assert "\\x1b[2Jcache" in shown[0]
    assert "\\u202e" in shown[0]
    for text in (*shown, kvc("dump", sample, "--json").stdout):
        assert "\x1b" not in text
        assert "\u202e" not in text


def test_a_damaged_bundle_is_an_error(kvc, sample):
    sample.write_bytes(sample.read_bytes()[:-1])
    result = kvc("dump", sample)
    assert result.exit_code == 1
    assert "cut short" in result.stderr


def size_report(kvc, path, *options):
    return json.loads(kvc("dump", path, "--size", "--json", *options).stdout)["size"]


def test_every_byte_of_every_data_file_has_a_place(kvc, tmp_path):
    base = save_data(tmp_path / "base.kvc", SMALL, external=True)
    some = {"a": SMALL["a"], "new": b"new"}
    saved = save_data(tmp_path / "m.kvc", some, external=True, reuse=[base.data_path])
    report = size_report(kvc, tmp_path / "m.kvc")
    own, reused = report["data_files"]
    assert [own["path"], reused["path"]] == [saved.data_path, base.data_path]
    for file in (report, own, reused):
        assert sum(part["nbytes"] for part in file["parts"]) == file["nbytes"]
        assert min(part["nbytes"] for part in file["parts"]) >= 0
    assert (own["nbytes"], reused["nbytes"]) == (saved.data_nbytes, base.data_nbytes)
    others = [p for p in reused["parts"] if p["what"] == "not of this program"]
    assert [(p["count"], p["nbytes"]) for p in others] == [(3, 4355)]


def test_data_files_are_in_the_overview(kvc, tmp_path):
    saved = save_data(tmp_path / "m.kvc", SMALL, external=True)
    text = kvc("dump", tmp_path / "m.kvc").stdout
    assert ": 1.24 kB and 8.81 kB in 1 data file, recipe none" in text
    name, digest = saved.program.files[1].name, saved.program.files[1].digest.hex()
    assert f"DATA FILE {name} (digest {digest[:16]}), 8.81 kB\n" in text


def test_a_bundle_without_its_data_files_can_be_looked_at(kvc, tmp_path):
    saved = save_data(tmp_path / "m.kvc", SMALL, external=True)
    name = saved.program.files[1].name
    (tmp_path / "store").mkdir()
    (tmp_path / name).rename(tmp_path / "store" / name)
    result = kvc("dump", tmp_path / "m.kvc")
    assert result.exit_code == 0
    assert f"DATA FILE {name}" in result.stdout
    assert f"  it is not there; looked in: {tmp_path}\n" in result.stdout
    (missing,) = size_report(kvc, tmp_path / "m.kvc")["data_files"]
    assert missing["path"] == ""
    assert missing["nbytes"] == 4595
    folder = ("--data-folder", tmp_path / "store")
    (found,) = size_report(kvc, tmp_path / "m.kvc", *folder)["data_files"]
    assert found["path"] == str(tmp_path / "store" / name)
    assert f"{name}:4,096" in kvc("dump", tmp_path / "m.kvc", "--blobs").stdout


def test_a_wrong_data_file_is_told_of(kvc, tmp_path):
    saved = save_data(tmp_path / "m.kvc", SMALL, external=True)
    other = save_data(tmp_path / "n.kvc", {"a": b"a"}, external=True)
    data = tmp_path / saved.program.files[1].name
    data.write_bytes((tmp_path / other.program.files[1].name).read_bytes())
    text = kvc("dump", tmp_path / "m.kvc").stdout
    assert f"{data.name} must have digest" in text


def test_a_data_file_that_is_not_as_the_program_says_has_no_sizes(kvc, tmp_path):
    path = tmp_path / "m.kvc"
    saved = save_data(path, {"x": b"x" * 5000}, external=True)
    blob = replace(saved.program.blobs[0], offset=65536, align=65536)
    blobs, _ = parts(path)
    path.write_bytes(seal(blobs, encode(replace(saved.program, blobs=(blob,)))))
    (file,) = json.loads(kvc("dump", path, "--size", "--json").stdout)["size"][
        "data_files"
    ]
    assert "has it not, or not at this place" in file["problem"]
    assert all(part["nbytes"] >= 0 for part in file["parts"])


def test_delegates_are_listed_with_what_they_take(kvc, sample):
    part, *_ = json.loads(kvc("dump", sample, "--delegates", "--json").stdout)[
        "delegates"
    ]
    assert (part["method"], part["backend"], part["memory"]) == (
        "prefill",
        "sample",
        "planned",
    )
    assert (part["names"], part["weights_nbytes"]) == (1, 32)
    code = (part["block"], part["instructions"], part["payload_nbytes"])
    assert code == (0, 1, 0)
    lines = kvc("dump", sample, "--delegates").stdout.splitlines()
    assert lines[0].split()[:4] == ["delegate", "method", "block", "backend"]
    assert lines[0].split()[4:6] == ["instructions", "with"]
    assert lines[1].split()[:4] == ["0", "prefill", "0", "sample"]
    assert lines[1].split()[4:] == ["1", "1", "0", "1", "32", "256", "kvc", "0"]


def test_delegates_that_are_alike_are_one_line():
    one = DelegateReport("decode", 3, "sample", 5, 0, 2, 64, 0, "planned", 128, 0)
    alike = [replace(one, block=block) for block in (3, 5, 7)]
    other = replace(one, block=9, weights_nbytes=65)
    lines = delegate_lines([*alike, other, replace(one, block=11)], full=False)
    assert [line.split()[:3] for line in lines[1:]] == [
        ["0..2", "decode", "3..7"],
        ["3", "decode", "9"],
        ["4", "decode", "11"],
    ]
    full = delegate_lines(alike, full=True)
    assert [line.split()[2] for line in full[1:]] == ["3", "5", "7"]


def test_without_delegates_the_list_says_so(kvc, tiny):
    lines = kvc("dump", tiny, "--delegates").stdout.splitlines()
    assert lines[0] == "  no backend runs anything"
    assert lines[2].endswith("operator, left to PyTorch; the recipe names no backend")
    assert any("aten::linear" in line for line in lines[3:])


def test_what_a_backend_adds_to_its_code_is_counted_not_read(kvc, sample, monkeypatch):
    program = sample_program()
    partitions = tuple(replace(d, payload=b"my own") for d in program.delegates)
    with BundleFile.open(sample) as bundle:
        blobs = bundle.program.blobs
    foreign = replace(program, delegates=partitions, blobs=blobs)
    monkeypatch.setattr(BundleFile, "_read_program", lambda self, thorough: foreign)
    text = kvc("dump", sample, "--ops", "prefill").stdout
    assert "run by the backend sample, with 6 bytes of its own\n" in text


def test_a_saved_session_says_what_it_is(kvc, tiny, tmp_path):
    file = tmp_path / "chat.session"
    with load(tiny) as program, program.session(capacity=20) as session:
        for _ in generate(session, [1, 2, 3], max_tokens=2):
            pass
        session.save(file)
        identity = program.identity
    lines = kvc("dump", file).stdout.splitlines()
    assert lines[0].startswith(f"{file}: a saved session, ")
    assert [line.split(maxsplit=1) for line in lines[1:]] == [
        ["program", f"identity {identity[:16]}, as kvc dump BUNDLE says"],
        ["position", "4"],
        ["capacity", "20"],
        ["pending", "1 token generated but not run yet"],
        ["states", str(len(program.states))],
    ]
    told = json.loads(kvc("dump", file, "--json").stdout)["session"]
    assert (told["program"], told["position"]) == (identity, [4])
    assert "has no such tables" in kvc("dump", file, "--blobs").stderr
    file.write_bytes(file.read_bytes()[:-1])
    assert "it is damaged" in kvc("dump", file).stderr


@pytest.mark.parametrize("command", ["verify", "generate"])
def test_a_saved_session_in_place_of_a_bundle_is_named(kvc, tiny, tmp_path, command):
    with load(tiny) as program, program.session() as session:
        session.save(tmp_path / "s")
    wrong = kvc(command, tmp_path / "s", *["a"] * (command == "generate"))
    assert "a bundle (.kvc) is expected here, but it is a saved session" in wrong.stderr
