"""The files of the page: those of one folder, and no others."""

import re

import pytest

from kvc.schema.errors import UnknownPath
from kvc.serving.http.page_files import FOLDER, page_answer, read_page


@pytest.fixture
def folder(tmp_path):
    home = tmp_path / "page"
    home.mkdir()
    (home / "index.html").write_text("<p>é</p>")
    (home / "page.js").write_text("1")
    (home / "notes.md").write_text("no")
    (home / "inner.css").mkdir()
    (tmp_path / "secret.js").write_text("secret")
    return home


def test_files_of_known_types_are_served_with_a_policy(folder):
    files = read_page(folder)
    assert list(files) == ["index.html", "page.js"]
    answer = page_answer(files, "index.html")
    assert answer.body.decode() == "<p>é</p>"
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    kind = page_answer(files, "page.js").headers["content-type"]
    assert kind.startswith("text/javascript")


@pytest.mark.parametrize(
    "name", ["notes.md", "inner.css", "../secret.js", "", ".", "/etc/passwd", "page"]
)
def test_nothing_else_is_served(folder, name):
    with pytest.raises(UnknownPath):
        page_answer(read_page(folder), name)


def test_there_may_be_no_page(tmp_path):
    assert read_page(tmp_path / "nowhere") == {}


def test_the_page_is_served_with_all_that_it_names(server):
    answer = server.ask("GET", "/")
    if not read_page():
        assert answer.status == 404
        return
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    named = re.findall(r'(?:src|href)="(page/[^"]+)"', answer.body.decode())
    assert named
    for name in named:
        found = server.ask("GET", f"/{name}")
        assert found.status == 200
        assert found.body == (FOLDER / name.removeprefix("page/")).read_bytes()
        assert found.headers["x-content-type-options"] == "nosniff"
