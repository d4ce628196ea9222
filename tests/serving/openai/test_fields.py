"""Fields of JSON that strangers write."""

import time

import pytest

from kvc.schema.errors import BadSetting
from kvc.serving.openai.fields import Fields


@pytest.mark.parametrize("value", [None, [], "a", 1, True])
def test_what_is_no_object_is_refused(value):
    with pytest.raises(BadSetting, match="the body: expected a JSON object"):
        Fields(value)


OTHERS = ["zz", "", -1, 10, 1e400, float("nan"), 10**400, 2.5, True, [], {}, [1]]


@pytest.mark.parametrize(
    ("ask", "good", "refused"),
    [
        (lambda f: f.text("x"), ["", "a"], OTHERS[2:]),
        (lambda f: f.flag("x"), [True, False], [*OTHERS[:8], *OTHERS[9:]]),
        (lambda f: f.whole("x", 0, 9), [0, 9, 3.0], OTHERS),
        (lambda f: f.number("x", 0, 9), [0, 9, 2.5], [*OTHERS[:7], *OTHERS[8:]]),
        (lambda f: f.listed("x"), [[], [1]], [*OTHERS[:9], {}]),
        (lambda f: f.one_of("x", ("a", "b")), ["a"], OTHERS),
    ],
)
def test_values_of_other_types_are_refused(ask, good, refused):
    assert ask(Fields({})) is ask(Fields({"x": None})) is None
    for value in good:
        assert ask(Fields({"x": value})) == value
    for value in refused:
        with pytest.raises(BadSetting, match=r"^it\.x: expected"):
            ask(Fields({"x": value}, "it"))


def test_inner_objects_have_their_place():
    inner = Fields({"a": {"b": 1}}).inner("a")
    with pytest.raises(BadSetting, match=r"a\.b: expected a text, got 1"):
        inner.text("b")
    with pytest.raises(BadSetting, match=r"a: expected a JSON object"):
        Fields({"a": [1]}).inner("a")


def test_unknown_fields_are_refused_unless_they_are_null():
    fields = Fields({"temperatur": 1, "other": None})
    with pytest.raises(BadSetting, match="did you mean 'temperature'"):
        fields.check_known({"temperature"})
    Fields({"other": None}).check_known({"temperature"})


def test_long_values_are_cut_in_messages():
    with pytest.raises(BadSetting) as caught:
        Fields({"x": "y" * 10_000}).whole("x", 0, 1)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("value", ["y" * 10**7, [["y", {"a": 1}]] * 10**6])
def test_of_a_large_value_no_more_is_written_than_is_shown(value):
    began = time.process_time()
    with pytest.raises(BadSetting):
        Fields({"x": value}).whole("x", 0, 1)
    with pytest.raises(BadSetting, match="does not know the field"):
        Fields({"y" * 10**7: 1}).check_known({"temperature"})
    assert time.process_time() - began < 0.2
