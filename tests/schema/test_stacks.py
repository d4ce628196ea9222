import pytest

from kvc.schema.stacks import part_name, parts_of


def test_parts_have_the_names_that_python_gives_them():
    assert part_name("layers.k", 0, 3) == "layers.k[3]"
    assert part_name("k", 1, 0) == "k[:,0]"


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_buffer_is_found_by_its_parts(axis):
    names = tuple(part_name("k", axis, place) for place in range(11))
    assert parts_of("k", ["v", *reversed(names), "kk[0]"]) == (axis, names)


def test_a_part_may_be_in_parts_itself():
    names = [f"kv[{i}][:,{j}]" for i in range(2) for j in range(3)]
    assert parts_of("kv", names) == (0, ("kv[0]", "kv[1]"))
    assert parts_of("kv[1]", names) == (1, ("kv[1][:,0]", "kv[1][:,1]", "kv[1][:,2]"))


@pytest.mark.parametrize(
    "names",
    [
        (),
        ("k",),
        ("k[1]",),
        ("k[99999999999]",),
        ("k[0]", "k[:,1]"),
        ("k[x]",),
        ("k[",),
    ],
)
def test_other_names_are_no_parts(names):
    assert parts_of("k", names) is None
