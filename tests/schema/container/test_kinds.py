"""What a file that is not kvc's looks like."""

import pytest

from kvc.schema.container.kinds import guess_kind


@pytest.mark.parametrize(
    ("head", "guess"),
    [
        (b"# PyTorch models\r\n\tand text", "a text file"),
        (b'{"model": 1}', "a JSON text"),
        (b"\x08\x07\x12\x07pytorch\x1a\x05", "an ONNX model"),
        (b"", "an empty file"),
        (b"\x01\x02\x03\x04", "nothing that kvc knows"),
    ],
)
def test_a_file_is_known_by_its_beginning(head, guess):
    assert guess_kind(head) == guess
