"""The page in Chromium without a window: it draws, answers, and keeps to itself.

Each test appends a script to a page, which uses it as a reader would and puts what it
saw into an element, and asks the browser for the document after that. They are skipped
where there is no Chromium (`apt install chromium`).
"""

import json
import re
import shutil
import subprocess
from dataclasses import replace

import pytest
from bundle_pages import HOSTILE, content_of

from kvc.schema.verify.limits import MAX_NAME_NBYTES
from kvc.tools.page.content import Piece, page_text

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")

# Before the page's own script: what goes wrong in it is seen.
LISTEN = """<script>
const problems = [];
addEventListener("error", (event) => problems.push(event.message));
addEventListener("securitypolicyviolation", (e) => problems.push(e.violatedDirective));
for (const kind of ["error", "warn"]) {
  console[kind] = (...words) => problems.push(words.join(" "));
}
</script>"""
TELL = """<script>
const soon = () => new Promise((done) => setTimeout(done, 150));
function shown(selector) {
  return [...document.querySelectorAll(selector)].map((one) => one.textContent);
}
(async () => {
  await soon();
  let seen;
  try {
    seen = await (async () => { %s })();
  } catch (error) {
    problems.push(String(error));
  }
  const told = document.createElement("script");
  told.type = "application/json";
  told.id = "told";
  told.textContent = JSON.stringify({ problems, seen }).replaceAll("<", "\\\\u003c");
  document.body.append(told);
  if (parent !== window) parent.postMessage(told.textContent, "*");
})();
</script>"""
# A window is 500 pixels wide at the least; a frame in it has any width.
FRAME = """<!doctype html>
<iframe src="page.html" style="border: 0; width: %dpx; height: 844px"></iframe>
<script>addEventListener("message", (event) => {
  const told = document.createElement("script");
  told.type = "application/json";
  told.id = "told";
  told.textContent = event.data;
  document.body.append(told);
});</script>"""


@pytest.fixture
def ask(tmp_path):
    """Open a page and run a script in it; return what that returns.

    With `width` the page is in a frame of so many pixels.
    """

    def ask_(content, script, *options, width=None):
        page = page_text(content).replace("<body>", "<body>" + LISTEN, 1)
        path = tmp_path / "page.html"
        before, end, after = page.rpartition("</body>")
        path.write_text(before + TELL % script + end + after)
        if width is not None:
            path = tmp_path / "frame.html"
            path.write_text(FRAME % width)
        profile = f"--user-data-dir={tmp_path / 'profile'}"
        usual = ("--headless=new", "--no-sandbox", "--disable-gpu", profile)
        budget = ("--virtual-time-budget=8000", "--window-size=1280,1600")
        done = subprocess.run(
            [BROWSER, *usual, *budget, *options, "--dump-dom", path.as_uri()],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        pattern = r'<script type="application/json" id="told">(.*?)</script>'
        told = json.loads(re.search(pattern, done.stdout, re.DOTALL)[1])
        assert told["problems"] == []
        return told["seen"]

    return ask_


def test_all_is_drawn(ask, fast):
    seen = ask(
        content_of(fast),
        """return {
          cost: shown("#cost")[0], cards: shown(".card").length,
          methods: shown("#methods tbody tr td:first-child"),
          canvases: document.querySelectorAll(".chart canvas").length,
          regions: echarts.getInstanceByDom(document.getElementById("arena-chart"))
            .getOption().series[0].data.length,
          modules: shown("#code-table .module"),
          tables: ["states", "blobs", "operators"].map((id) =>
            document.querySelectorAll(`#${id}-table .tabulator-row`).length),
          unlabelled: [...document.querySelectorAll(".bar input, .bar select, button")]
            .filter((one) => !one.labels?.length && !one.textContent).length,
          title: document.title }""",
    )
    content = content_of(fast)
    assert "in memory at seq = " in seen["cost"]
    assert seen["cards"] == 6
    assert [name.split(" ")[0] for name in seen["methods"]] == ["prefill", "decode"]
    assert seen["canvases"] == 2
    assert seen["regions"] == max(map(len, (a.regions for a in content.arenas)))
    assert "layers.0" in " ".join(seen["modules"])
    assert min(seen["tables"]) > 0
    assert seen["unlabelled"] == 0
    assert seen["title"] == "fast.kvc"


def test_pointing_at_a_box_tells_of_the_value(ask, fast):
    seen = ask(
        content_of(fast),
        """const place = document.getElementById("arena-chart");
        const chart = echarts.getInstanceByDom(place);
        const told = [];
        for (const at of [0, 3]) {
          const [left, right, low, high] = chart.getOption().series[0].data[at].value;
          const [x, y] = chart.convertToPixel({ seriesIndex: 0 },
                                              [(left + right) / 2, (low + high) / 2]);
          const canvas = place.querySelector("canvas");
          const box = canvas.getBoundingClientRect();
          const where = { clientX: box.left + x, clientY: box.top + y };
          canvas.dispatchEvent(
            new MouseEvent("mousemove", { bubbles: true, view: window, ...where }));
          await soon();
          told.push(shown("#arena-chart .tip")[0]);
        }
        return told;""",
    )
    arena = max(content_of(fast).arenas, key=lambda one: one.nbytes)
    for index, text in zip((0, 3), seen, strict=True):
        region = arena.regions[index]
        assert region.op.partition("::")[2] in text or region.op in text
        assert region.type in text
        assert f"bytes {region.offset:,} to {region.offset + region.nbytes:,}" in text
        assert region.line in text


def test_finding_folding_and_sorting(ask, fast):
    seen = ask(
        content_of(fast),
        """const find = document.getElementById("find");
        const type = async (text) => {
          find.value = text;
          find.dispatchEvent(new Event("input"));
          await soon();
        };
        const rows = () =>
          shown("#code-table .tabulator-row .tabulator-cell:first-child");
        await type("cache_update");
        const found = rows(), facts = shown("#code-facts")[0];
        await type("no such thing");
        const nothing = rows();
        await type("");
        const closed = rows().length;
        document.getElementById("unfold").click();
        await soon();
        const open = rows().length;
        const method = document.getElementById("method");
        method.value = "1";
        method.dispatchEvent(new Event("change"));
        await soon();
        const title = document.querySelector(
          "#blobs-table .tabulator-col[tabulator-field=nbytes] .tabulator-col-title");
        title.click();
        await soon();
        const sorted = shown("#blobs-table [tabulator-field=nbytes].tabulator-cell");
        const button = shown("#unfold")[0];
        return { found, facts, nothing, closed, open, button, sorted };""",
    )
    assert set(seen["found"]) == {"cache_update"}
    assert seen["facts"].startswith(f"{len(seen['found'])} of ")
    assert seen["nothing"] == []
    assert seen["open"] > seen["closed"]
    assert seen["button"] == "Unfold all"  # another method's instructions are folded
    numbers = [int(number.replace(",", "")) for number in seen["sorted"]]
    assert numbers == sorted(numbers)


def test_a_blob_whose_name_begins_another_name_has_a_box(ask, sample):
    pieces = (
        Piece(("a", "w"), "float32", 100),
        Piece(("a", "w", "scale"), "float16", 20),
        Piece(("a", "w"), "int8", 3),
    )
    seen = ask(
        replace(content_of(sample), pieces=pieces),
        """const [root] = tree(content.pieces, () => "red");
        return [root.name, root.value,
                root.children.map((one) => [one.name, one.value, one.kind])];""",
    )
    boxes = [["", 100, "float32"], ["", 3, "int8"], ["scale", 20, "float16"]]
    assert seen == ["a.w", 123, boxes]


def test_dark_and_light(ask, fast):
    script = """const root = document.documentElement;
        const paper = () => getComputedStyle(document.body).backgroundColor;
        const before = [root.dataset.theme, paper()];
        document.getElementById("theme").click();
        await soon();
        return [before, [root.dataset.theme, paper()]];"""
    light = ask(content_of(fast), script)
    assert [theme for theme, _ in light] == ["light", "dark"]
    assert light[0][1] != light[1][1]
    dark = ask(content_of(fast), script, "--force-dark-mode")
    assert dark == light[::-1]


def test_the_keyboard_reaches_everything(ask, fast):
    seen = ask(
        content_of(fast),
        """const names = ["theme", "arena", "method", "find", "views", "unfold"];
        return names.map((id) => {
          document.getElementById(id).focus();
          return document.activeElement.id;
        }).concat([document.querySelectorAll("nav a").length]);""",
    )
    assert seen == ["theme", "arena", "method", "find", "views", "unfold", 7]


def test_names_of_a_stranger_do_nothing(ask, sample):
    content = content_of(sample)
    name = f"{HOSTILE}<img src=x onerror=document.title='taken'>"
    report = replace(
        content.report,
        methods=tuple(replace(m, name=name) for m in content.report.methods),
        states=tuple(replace(s, name=name, type=name) for s in content.report.states),
        blobs=tuple(
            replace(b, file=name, names=tuple(replace(n, name=name) for n in b.names))
            for b in content.report.blobs
        ),
    )
    hostile = replace(
        content,
        report=report,
        pieces=tuple(replace(p, path=(name, name), kind=name) for p in content.pieces),
        arenas=tuple(
            replace(
                a,
                name=name,
                regions=tuple(replace(r, op=name, type=name) for r in a.regions),
            )
            for a in content.arenas
        ),
        code=tuple(
            replace(
                c,
                steps=tuple(
                    replace(
                        s, op=name, type=name, module=name, line=name, writes=(name,)
                    )
                    for s in c.steps
                ),
            )
            for c in content.code
        ),
    )
    seen = ask(
        hostile,
        """for (const id of ["arena-chart", "size-chart"]) {
          echarts.getInstanceByDom(document.getElementById(id))
            ?.dispatchAction({ type: "showTip", seriesIndex: 0, dataIndex: 1 });
        }
        document.querySelectorAll(".tabulator-cell").forEach((cell) =>
          cell.dispatchEvent(new MouseEvent("mousemove", { bubbles: true })));
        document.getElementById("unfold").click();
        await soon();
        await soon();
        return [document.title, document.querySelectorAll("img").length];""",
    )
    assert seen == ["sample.kvc", 0]


def large_content(path):
    """A page of a method of 10,000 instructions in 500 layers."""
    content = content_of(path)
    code, arena = content.code[0], content.arenas[0]
    steps = tuple(
        replace(
            code.steps[number % len(code.steps)],
            computes=True,
            module=f"layers.{number // 20}.part{number % 3}",
            line=f"model:{number}",
        )
        for number in range(10_000)
    )
    regions = tuple(
        replace(
            arena.regions[0],
            first=number,
            last=number + number % 7,
            offset=64 * (number % 500),
            nbytes=64,
        )
        for number in range(10_000)
    )
    plan = replace(arena, steps=10_007, nbytes=64 * 500, regions=regions)
    return replace(content, code=(replace(code, steps=steps),), arenas=(plan,))


def test_ten_thousand_operators_are_searched_folded_and_zoomed(ask, fast):
    script = """const find = document.getElementById("find");
        const type = async (text) => {
          find.value = text;
          find.dispatchEvent(new Event("input"));
          await soon();
          return codeTable.getRows().length;
        };
        const found = [];
        for (const text of ["layers.4", "part1", "model:77", "no such thing", ""]) {
          found.push(await type(text));
        }
        for (let turn = 0; turn < 4; turn += 1) {
          document.getElementById("unfold").click();
          await soon();
        }
        const chart = echarts.getInstanceByDom(document.getElementById("arena-chart"));
        for (let index = 0; index < 20; index += 1) {
          const dataIndex = 50 * index;
          chart.dispatchAction({ type: "showTip", seriesIndex: 0, dataIndex });
        }
        for (let start = 0; start < 10; start += 1) {
          chart.dispatchAction({ type: "dataZoom", start, end: 100 - start });
          chart.getZr().flush();
        }
        return found;"""

    layers, parts, lines, nothing, _ = ask(large_content(fast), script)
    assert (layers, parts, lines, nothing) == (111 * 20, 3333, 111, 0)


def test_names_of_as_many_dots_as_a_file_may_have_are_drawn(ask, sample):
    content = content_of(sample)
    names = ["." * MAX_NAME_NBYTES]  # each level has another part beside it
    names += [("a." * depth + "x")[-MAX_NAME_NBYTES:] for depth in range(128)]
    step = content.code[0].steps[0]
    made = [replace(step, module=name, computes=True) for name in names]
    deep = replace(
        content,
        pieces=tuple(Piece(tuple(name.split(".")), "int8", 100) for name in names),
        code=(replace(content.code[0], steps=tuple(made)),),
    )
    seen = ask(
        deep,
        """const data = tree(content.pieces, () => "red");
        const depth = (boxes) => 1 + Math.max(0, ...boxes.map((box) =>
          box.children ? depth(box.children) : 0));
        document.getElementById("unfold").click();
        await soon();
        return [depth(data), document.querySelectorAll(".chart canvas").length,
                codeTable.getRows().length];""",
    )
    assert seen == [127, 2, 3]


def test_no_cell_is_undefined(ask, fast):
    seen = ask(
        content_of(fast),
        """document.getElementById("unfold").click();
        await soon();
        return shown("#code-table .tabulator-cell, #methods td");""",
    )
    assert len(seen) > 30
    assert not [text for text in seen if "undefined" in text or "NaN" in text]


def test_on_a_phone_nothing_runs_off_the_page(ask, fast):
    paths = [("model", "layers", str(i), part) for i in range(24) for part in "ab"]
    paths += [("model", "norm"), ("head",)]
    pieces = tuple(Piece(path, "int8", 4096) for path in paths)
    seen = ask(
        replace(content_of(fast), pieces=pieces),
        """const codes = document.getElementById("arena");
        codes.options[0].text = "prefill_of_all_rows, block 12, xnnpack (4.85 MB)";
        const place = document.getElementById("size-chart");
        const chart = echarts.getInstanceByDom(place);
        const itself = (one) => one.closest(".tabulator, .chart, .end, select");
        const own = (one) => one.tagName + "#" + one.id + "." + one.className;
        return {
          page: [document.documentElement.scrollWidth, innerWidth],
          outside: [...document.body.querySelectorAll("*")]
            .filter((one) => !itself(one.parentElement)
              && one.getBoundingClientRect().right > innerWidth)
            .map(own),
          cut: [...document.querySelectorAll("main *, header *, footer *")]
            .filter((one) => !itself(one) && one.scrollWidth > one.clientWidth + 1
              && getComputedStyle(one).display !== "inline").map(own),
          narrow: [...document.querySelectorAll(".tabulator-col")]
            .filter((one) => one.offsetWidth && one.offsetWidth < 60).length,
          labels: chart.getZr().storage.getDisplayList()
            .map((one) => one.style.text).filter((text) => text) }""",
        width=390,
    )
    width, window = seen["page"]
    assert window == 390
    assert width <= window
    assert seen["outside"] == []
    assert seen["cut"] == []
    assert seen["narrow"] == 0
    shown = {text for text in seen["labels"] if text.isdecimal()}
    assert shown == set(map(str, range(24)))
