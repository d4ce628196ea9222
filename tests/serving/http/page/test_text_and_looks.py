"""What the page makes of text, whatever a model writes; and its looks, for everyone."""

import json

import pytest
from chat_page import ANSWER, ask
from chat_server import Reply, delta, stream

HOSTILE = """<script>document.title = "taken"</script>
<img src=x onerror="document.title = 'taken'">

[a](javascript:document.title='taken') [b](data:text/html,x) [c](vbscript:x)
[d](JaVaScRiPt:x) [e](https://example.com/<img) ![f](https://example.com/g.png)

| <b>h</b> | `<i>` |
|--|--|
| <svg onload=x> | [j](file:///etc/passwd) |

```<script>
</code></pre><script>document.title = "taken"</script>
```"""
RICH = """# Title

One **bold *both* more**, *it*, `co*de*`, ~~gone~~, snake_case_name and 2 * 3 * 4.
Next line, \\*no mark\\*, ***all***, __b__.

1. one
   - deep `x`
   - er

     more
2. two

> quote
> - in it

| a | b |
|:--|--:|
| 1 \\| 2 | `x | y` |

```python
def f():
    return "*"
```

[word](https://example.com/a_(b)) https://example.com/c_d. <https://example.com>

---
~~~
unclosed"""
NODES = f"""const tree = (node) => node.nodeType === 3 ? node.data
  : [node.localName, ...[...node.childNodes].map(tree)];
return tree(document.querySelector("{ANSWER}"));"""


def tell(page, desk, text, size=50):
    pieces = [delta(content=text[i : i + size]) for i in range(0, len(text), size)]
    desk.replies.append(Reply([stream(pieces)]))
    ask(page, "Tell")


def named(tree, name):
    """Return the children of the elements of a name."""
    found = [tree[1:]] if tree[0] == name else []
    for child in tree[1:]:
        if isinstance(child, list):
            found += named(child, name)
    return found


def test_markdown_becomes_elements(page, desk):
    tell(page, desk, RICH, 3)
    tree = page.run(NODES)
    assert named(tree, "h3") == [["Title"]]
    assert named(tree, "p")[0] == [
        "One ", ["strong", "bold ", ["em", "both"], " more"], ", ", ["em", "it"], ", ",
        ["code", "co*de*"], ", ", ["del", "gone"],
        ", snake_case_name and 2 * 3 * 4.", ["br"], "Next line, *no mark*, ",
        ["strong", ["em", "all"]], ", ", ["strong", "b"], ".",
    ]  # fmt: skip
    (ordered,) = named(tree, "ol")
    first, second = ordered
    assert first[1] == "one"
    inner = ["li", ["p", "er"], ["p", "more"]]
    assert first[2] == ["ul", ["li", "deep ", ["code", "x"]], inner]
    assert second == ["li", "two"]
    assert named(tree, "blockquote") == [[["p", "quote"], ["ul", ["li", "in it"]]]]
    assert named(tree, "td") == [["1 | 2"], [["code", "x | y"]]]
    codes = [one for (one,) in named(tree, "pre")]
    assert codes == [["code", 'def f():\n    return "*"'], ["code", "unclosed"]]
    assert len(named(tree, "hr")) == 1
    links = page.run(f"return [...document.querySelectorAll('{ANSWER} a')]"
                     ".map((one) => [one.href, one.innerText, one.rel])")  # fmt: skip
    rel = "noopener noreferrer"
    assert links == [
        ["https://example.com/a_(b)", "word", rel],
        ["https://example.com/c_d", "https://example.com/c_d", rel],
        ["https://example.com/", "https://example.com", rel],
    ]


def test_hostile_text_stays_text(page, desk, server):
    tell(page, desk, HOSTILE)
    page.run("await new Promise((done) => setTimeout(done, 50))")
    assert page.run("return document.title") == "Tell - kvc"
    tree = page.run(NODES)
    for name in ("script", "img", "svg", "b", "i"):
        inside = [one for one in named(tree, name) if name != "svg" or one != [["use"]]]
        assert inside == [], name
    links = page.run(f"return [...document.querySelectorAll('{ANSWER} a')]"
                     ".map((one) => one.href)")  # fmt: skip
    assert links == ["https://example.com/", "https://example.com/g.png"]
    assert "<script>document.title" in page.texts(ANSWER)[0]
    message = "</textarea><img src=x onerror=alert(1)>"
    ask(page, message)
    page.go(server.url + "?again")
    page.click("#chats .chat")
    assert page.texts(".bubble") == ["Tell", message]
    assert page.texts("#chats .chat") == ["Tell"]


HUGE = {
    "one word": "a" * 300_000,
    "stars": "*a " * 60_000,
    "marks": "**_~~`[" * 20_000,
    "brackets": "[" * 60_000 + "](" * 20_000,
    "quotes": ">" * 50_000,
    "items": "\n".join("  " * i + "- x" for i in range(300)),
    "table": "|" * 3_000 + "\n" + "|-" * 3_000 + "\n" + "|x" * 3_000,
    "fences": "`" * 50_000 + "\n" + "~" * 50_000,
    "backticks": " ".join("`" * (i % 300) for i in range(3_000)),
}


@pytest.mark.parametrize("name", HUGE)
def test_huge_text_is_drawn_soon(page, desk, name):
    page.call("Performance.enable", timeDomain="threadTicks")
    tell(page, desk, HUGE[name], 20_000)
    length = page.run(f"return document.querySelector('{ANSWER}').textContent.length")
    assert length > 100
    found = {
        m["name"]: m["value"] for m in page.call("Performance.getMetrics")["metrics"]
    }
    assert 0 < found["TaskDuration"] < 4  # of the processor
    wide = page.run("return [document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1]


def test_on_a_phone_nothing_runs_off_the_page(page, desk):
    page.resize(360, 740)
    wide = "| " + " | ".join("column" for _ in range(20)) + " |"
    rule = "|" + "--|" * 20
    text = f"{'word' * 100}\n\n```\n{'x' * 500}\n```\n\n{wide}\n{rule}\n{wide}"
    tell(page, desk, text)
    ask(page, "m" * 200)
    for opened in ("", "#settings-open", "#side-open"):
        if opened:
            page.click(opened)
            page.run("await new Promise((done) => setTimeout(done, 300))")
        outside = page.run(
            "return [...document.querySelectorAll('body *')].filter((one) =>"
            "  one.getBoundingClientRect().right > innerWidth + 0.5"
            "  && !one.closest('pre, .table, .unseen, svg'))"
            ".map((one) => one.outerHTML.slice(0, 80))"
        )
        assert outside == [], opened
        sizes = page.run(
            "return [document.documentElement, document.getElementById('scroll')]"
            ".map((one) => one.scrollWidth - one.clientWidth)"
        )
        assert sizes == [0, 0]
        page.press("Escape")


def test_dark_and_light_have_contrast(page, desk):
    tell(page, desk, "Some `code`, [a link](https://example.com) and text.")
    script = """const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
      const light = (colour) => numbers(colour).slice(0, 3).map((one) => one / 255)
        .map((one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
        .reduce((sum, one, i) => sum + one * [0.2126, 0.7152, 0.0722][i], 0);
      const paper = (one) => {
        const colour = getComputedStyle(one).backgroundColor;
        return numbers(colour)[3] === 0 ? paper(one.parentElement) : colour;
      };
      const selectors = [".bubble", ".answer p", ".answer code", ".answer a",
                         ".figures", "#server-facts", ".keys", ".chat", "#model"];
      return [getComputedStyle(document.body).backgroundColor, selectors.map((one) => {
        const place = document.querySelector(one);
        const both = [light(getComputedStyle(place).color), light(paper(place))].sort();
        return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
      })];"""
    papers = []
    for scheme in ("light", "dark"):
        page.prefer({"prefers-color-scheme": scheme})
        paper, contrasts = page.run(script)
        papers.append(paper)
        assert min(contrasts) >= 4.5, (scheme, contrasts)  # WCAG 2.2, level AA
    assert papers[0] != papers[1]


def test_motion_ends_for_those_who_want_none(page):
    script = """const place = document.createElement("i");
      place.className = "busy";
      document.body.append(place);
      return getComputedStyle(place).animationName;"""
    assert page.run(script) == "breathe"
    page.prefer({"prefers-reduced-motion": "reduce"})
    assert page.run(script) == "none"


def test_the_keyboard_reaches_everything_in_the_order_of_the_page(page, desk):
    tell(page, desk, "Text with `code`.\n\n```\ncode\n```")
    page.run("document.activeElement.blur(); getSelection().removeAllRanges();"
             "document.querySelector('.skip').focus()")  # fmt: skip
    reached = []
    for _ in range(14):
        reached.append(page.run(
            "const one = document.activeElement;"
            "return one.id || one.ariaLabel || one.innerText"
        ))  # fmt: skip
        page.press("Tab")
    assert reached == [
        "Go to the message field", "new", "Tell", "Delete the chat Tell",
        "settings-open", "Copy this message", "Edit this message", "Copy the code",
        "Code", "Copy this answer", "Answer again", "message", *reached[12:],
    ]  # fmt: skip
    outline = page.run(
        "document.getElementById('new').focus();"
        "return getComputedStyle(document.getElementById('new')).outlineStyle"
    )
    assert outline == "solid"


def named_parts(page):
    """Return the names of all parts that screen readers tell; each must have one."""
    kinds = {"button", "textbox", "combobox", "link", "dialog", "article", "log"}
    names = set()
    for node in page.call("Accessibility.getFullAXTree")["nodes"]:
        if not node["ignored"] and node.get("role", {}).get("value") in kinds:
            assert node["name"]["value"], json.dumps(node)
            names.add(node["name"]["value"])
    return names


def test_everything_has_a_name_for_those_who_hear_it(page, desk):
    tell(page, desk, "Text")
    names = named_parts(page)
    assert {"Settings of this chat", "Model", "Message", "Conversation"} <= names
    page.click("#settings-open")
    assert {"System prompt", "Temperature", "Seed"} <= named_parts(page)
    page.press("Escape")
    live = page.run("const log = document.getElementById('thread');"
                    "return [log.getAttribute('role'), log.ariaLive]")  # fmt: skip
    assert live == ["log", "polite"]
