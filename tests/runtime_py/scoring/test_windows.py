import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvc.runtime.scoring import TextWindow, cut_windows
from kvc.schema.errors import BadSetting


def test_windows_overlap_and_each_token_counts_once():
    assert list(cut_windows(10, 4, 2, has_start=True)) == [
        TextWindow(0, 0, 4),
        TextWindow(2, 4, 6),
        TextWindow(4, 6, 8),
        TextWindow(6, 8, 10),
    ]


def test_without_a_start_token_the_first_token_does_not_count():
    assert list(cut_windows(5, 4, 3, has_start=False)) == [
        TextWindow(0, 1, 4),
        TextWindow(3, 4, 5),
    ]
    assert list(cut_windows(1, 4, 3, has_start=False)) == []
    assert list(cut_windows(1, 4, 3, has_start=True)) == [TextWindow(0, 0, 1)]
    assert list(cut_windows(0, 4, 3, has_start=True)) == []


@given(st.integers(0, 60), st.integers(2, 20), st.integers(1, 20), st.booleans())
def test_windows_of_any_size_count_each_token_once(count, length, stride, has_start):
    stride = min(stride, length - 1)
    windows = list(cut_windows(count, length, stride, has_start))
    counted = [i for one in windows for i in range(one.first, one.end)]
    assert counted == list(range(0 if has_start else 1, count))
    for one in windows:
        assert one.end - one.begin <= length
        assert one.first > one.begin or (has_start and one.first == 0)


@pytest.mark.parametrize(
    ("length", "stride", "name"), [(1, 1, "window"), (4, 4, "stride"), (4, 0, "stride")]
)
def test_impossible_sizes_are_refused(length, stride, name):
    with pytest.raises(BadSetting, match=f"^{name}: expected"):
        list(cut_windows(10, length, stride, has_start=True))
