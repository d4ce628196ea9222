"""A table of a page is written between marks; what lies around it stays."""

import pytest

from kvc.tools.dev.page_sections import Section, kept_part, with_section

MARK = "<!-- by a program -->\n"
PAGE = f"# Page\n\nBefore.\n\n{MARK}\n{MARK}\nAfter.\n"
A = Section("### A", "About A.", ("name", "n"), {"x": ["1"], "y": ["2"]}, ("y", "x"))
B = Section("### B", "About B.", ("name", "n"), {"z": ["3"]})
TABLE_A = """\
### A

About A.

| name | n |
| --- | --- |
| y | 2 |
| x | 1 |
"""


def test_a_section_stands_between_the_marks_in_the_order_asked_for():
    page = with_section(PAGE, MARK, A)
    assert page == f"# Page\n\nBefore.\n\n{MARK}\n{TABLE_A}\n{MARK}\nAfter.\n"


def test_another_section_follows_and_the_first_stays_in_its_place():
    both = with_section(with_section(PAGE, MARK, A), MARK, B)
    assert both.index("### A") < both.index("### B")
    assert with_section(both, MARK, A) == both


def test_what_stands_before_the_first_section_stays():
    page = PAGE.replace(MARK, f"{MARK}\nBy hand.\n", 1)
    assert f"{MARK}\nBy hand.\n\n### B" in with_section(page, MARK, B)


def test_a_line_that_was_measured_again_is_replaced_and_the_others_stay():
    newer = Section(A.title, A.text, A.head, {"x": ["9"]}, A.order)
    page = with_section(with_section(PAGE, MARK, A), MARK, newer)
    assert "| y | 2 |\n| x | 9 |\n" in page


@pytest.mark.parametrize("change", [{"text": "Other."}, {"head": ("name", "m")}])
def test_lines_of_a_table_that_says_something_else_go(change):
    fields = {"title": A.title, "text": A.text, "head": A.head} | change
    newer = Section(**fields, lines={"x": ["9"]})
    page = with_section(with_section(PAGE, MARK, A), MARK, newer)
    assert "| x | 9 |" in page
    assert "| y |" not in page


def test_what_is_marked_is_kept_for_who_writes_the_rest():
    page = with_section(PAGE, MARK, A)
    assert kept_part(page, MARK) == f"{MARK}\n{TABLE_A}\n{MARK}"
    assert kept_part("# Page\n", MARK) == f"{MARK}\n{MARK}"


@pytest.mark.parametrize("page", [f"one {MARK}", f"{MARK}{MARK}{MARK}"])
def test_a_mark_that_stands_alone_is_refused(page):
    with pytest.raises(ValueError, match="not two"):
        kept_part(page, MARK)
    with pytest.raises(ValueError, match="not two"):
        with_section(page, MARK, A)
