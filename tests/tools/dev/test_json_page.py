"""The page of what `kvc dump --json` prints is that of today's reports."""

from kvc.tools.dev.json_page import PAGE, page


def test_the_page_is_up_to_date():
    """Else run `python tools/dev/json_page.py`."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_fields_are_told_from_docstrings():
    lines = page().splitlines()
    assert "| `kind` | text |  |" in lines
    said = "most bytes live at one time, as the file states it; no plan can be smaller."
    assert f"| `peak_live` | integer | {said} |" in lines
