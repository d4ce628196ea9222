"""Lines of files: what ends one, and what is none."""

import pytest

from kvc.schema.errors import BadSetting, FileProblem
from kvc.tools.commands.embed import naming_lines, read_lines


@pytest.mark.parametrize(
    ("raw", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"\n\n", ["", ""]),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\n\n", ["a", ""]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\n\r\nb", ["a", "", "b"]),
        (b"a\rb\n", ["a\rb"]),
        (b" a \n\tb", [" a ", "\tb"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb", ["a", "\ufeffb"]),
        (b"\xef\xbb\xbf", []),
        ("a\u2028b\x0bc\x0cd\x85e\x1cf\n".encode(), ["a\u2028b\x0bc\x0cd\x85e\x1cf"]),
    ],
)
def test_a_line_ends_with_a_line_feed_alone(tmp_path, raw, lines):
    path = tmp_path / "lines.txt"
    path.write_bytes(raw)
    assert read_lines(str(path)) == lines


def test_what_is_no_text_is_refused_with_its_line(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes(b"a\nb\n\xff\n")
    with pytest.raises(FileProblem, match=r"line 3: it is no text of UTF-8"):
        read_lines(str(path))
    with pytest.raises(FileProblem, match="nowhere"):
        read_lines(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("texts[1]", BadSetting, r"texts\[1\]: expected"),
        ("texts[2]", FileProblem, r"f\.txt: line 1: expected a text, got 3"),
        ("texts[4]", FileProblem, r"f\.txt: line 3: expected"),
        ("prompt", BadSetting, "prompt: expected"),
    ],
)
def test_an_error_of_a_text_names_its_line_in_a_file(name, kind, text):
    with pytest.raises(kind, match=text), naming_lines("f.txt", before=2):
        raise BadSetting(name=name, expected="a text", found=3)
