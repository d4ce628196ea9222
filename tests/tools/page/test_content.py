"""What the page of a bundle is told: sizes that add up, places that do not overlap."""

import hashlib
import json
import re
from dataclasses import replace
from importlib.resources import files
from itertools import combinations

import torch
from bundle_pages import HOSTILE, content_of
from tiny_decoder import factory
from torch import nn

from kvc.compiler import Method, compile_program
from kvc.tools.page.content import page_text


def data_in(page):
    """Return the JSON of a page as a browser finds it: up to the first end tag."""
    found = re.search(
        r'<script id="content" type="application/json">(.*?)</script', page, re.DOTALL
    )
    return json.loads(found[1])


def test_pieces_are_the_whole_file(fast):
    content = content_of(fast)
    assert sum(piece.nbytes for piece in content.pieces) == fast.stat().st_size
    assert content.total == content.cost.total > 0


def test_pieces_are_those_of_data_files_too(tmp_path):
    spec, path = factory(), tmp_path / "apart.kvc"
    bundle = compile_program(spec.model, spec.methods, "fp32", states=spec.states)
    bundle.save(path, data="external")
    whole = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert sum(piece.nbytes for piece in content_of(path).pieces) == whole


def padded(region):
    return -(-region.nbytes // ALIGN) * ALIGN


def test_no_two_values_are_at_one_place_at_one_time(fast):
    arenas = content_of(fast).arenas
    assert arenas
    for arena in arenas:
        assert max(one.offset + one.nbytes for one in arena.regions) <= arena.nbytes
        assert max(one.last for one in arena.regions) < arena.steps
        alive = [
            sum(padded(one) for one in arena.regions if one.first <= at <= one.last)
            for at in range(arena.steps)
        ]
        assert max(alive) == arena.peak
        for one, other in combinations(arena.regions, 2):
            apart = one.offset + one.nbytes <= other.offset
            apart |= other.offset + other.nbytes <= one.offset
            assert apart or one.last < other.first or other.last < one.first


def test_steps_of_a_partition_say_who_runs_them_and_what_they_write(fast):
    content = content_of(fast)
    (decode,) = (code for code in content.code if code.method == "decode")
    assert {step.backend for step in decode.steps if step.computes} == {"cpu"}
    written = {name for step in decode.steps for name in step.writes}
    (method,) = (one for one in content.report.methods if one.name == "decode")
    assert written == set(method.writes)
    assert not sum(step.copied for step in decode.steps)
    assert any(step.module.startswith("layers.0") for step in decode.steps)
    assert any("tiny_decoder:" in s.line or "decoder:" in s.line for s in decode.steps)


class Turns(nn.Module):
    """Adds to a state in a branch, and gives what it was."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(64))

    def forward(self, x):
        before = self.total * 2
        more = torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (x,))
        self.total.add_(more)
        return before


def test_blocks_of_control_flow_are_inside(tmp_path):
    path = tmp_path / "turns.kvc"
    compile_program(Turns(), [Method("forward", (torch.ones(64),))], "fp32").save(path)
    (code,) = content_of(path).code
    inside = [step.op for step in code.steps if step.inside]
    assert sorted(inside) == ["aten::add.Scalar", "aten::sub.Scalar"]
    assert {name for step in code.steps for name in step.writes} == {"total"}
    assert {name for step in code.steps for name in step.reads} >= {"total"}


ALIGN = 64  # of the offsets of a plan


def test_names_of_a_stranger_stay_text(sample):
    content = content_of(sample)
    report = replace(
        content.report,
        methods=tuple(replace(m, name=HOSTILE) for m in content.report.methods),
        file=replace(content.report.file, path=f"/folder/{HOSTILE}.kvc"),
    )
    page = page_text(replace(content, report=report))
    assert data_in(page)["report"]["methods"][0]["name"] == HOSTILE
    assert "document.title='taken'</script>" not in page
    assert page.count("<script") == 3


def test_pages_of_equal_bundles_are_equal_and_ask_for_nothing(kvc, fast, tmp_path):
    pages = []
    for name in ("one.html", "two.html"):
        done = kvc("dump", fast, "--html", tmp_path / name)
        assert done.exit_code == 0, done.output
        assert done.output == ""
        again = kvc("dump", fast, "--html", tmp_path / name)
        assert again.exit_code == 0, "a page is replaced"
        pages.append((tmp_path / name).read_text())
    assert pages[0] == pages[1]
    policy = re.search(r'Content-Security-Policy"\s+content="([^"]*)"', pages[0])[1]
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    own = re.sub(r"<script>.*?</script>", "", pages[0], count=1, flags=re.DOTALL)
    assert not re.findall(r"(?:src|href)=\"(?!#)", own)


def test_where_a_page_cannot_be(kvc, fast, tmp_path):
    path = tmp_path / "report.html"
    for there in (fast.read_bytes(), b'<!doctype html>\n<html lang="en">my own', b"<"):
        path.write_bytes(there)
        done = kvc("dump", fast, "--html", path)
        assert done.exit_code == 1
        assert "another file is there" in done.output
        assert path.read_bytes() == there
    beside = kvc("dump", fast, "--html", tmp_path / "page.html", "--size")
    assert beside.exit_code == 2
    assert "--html has everything" in beside.output
    assert not (tmp_path / "page.html").exists()


def test_libraries_are_the_ones_that_the_list_names():
    vendor = files("kvc.tools.page").joinpath("vendor")
    rows = re.findall(
        r"^\| `(.*?)` .*`([0-9a-f]{64})` \|$",
        vendor.joinpath("README.md").read_text(),
        re.M,
    )
    assert len(rows) == 3
    for name, digest in rows:
        assert hashlib.sha256(vendor.joinpath(name).read_bytes()).hexdigest() == digest
