"""The sample of tests of states that runs on the libraries of vendors."""

from library_sample import one_of_each

MANY = [
    (f"test_a.py::test_it_grows[{recipe}-{number}]", recipe, False)
    for recipe in ("mlx", "qnn_fp16", "qnn_a16w8")
    for number in range(50)
]


def test_each_test_has_one_case_for_each_backend():
    found = one_of_each([*MANY, ("test_a.py::test_it_ends[mlx]", "mlx", False)])
    assert len(found) == 3
    assert "test_a.py::test_it_ends[mlx]" in found
    assert sum("test_it_grows[mlx" in case for case in found) == 1
    assert sum("test_it_grows[qnn" in case for case in found) == 1


def test_it_is_the_same_in_any_order():
    assert one_of_each(MANY) == one_of_each(MANY[::-1])


def test_recipes_of_a_backend_take_turns():
    cases = [
        (f"test_a.py::test_{number}[{recipe}]", recipe, False)
        for number in range(40)
        for recipe in ("qnn_fp16", "qnn_a16w8")
    ]
    found = one_of_each(cases)
    assert len(found) == 40
    assert 10 < sum("qnn_fp16" in case for case in found) < 30


def test_one_of_many_is_taken_where_there_are_no_others():
    rarely = [(case, recipe, True) for case, recipe, _ in MANY]
    usual = ("test_a.py::test_it_grows[mlx-usual]", "mlx", False)
    assert usual[0] in one_of_each([*rarely, usual])
    assert len(one_of_each(rarely)) == 2


def test_what_takes_minutes_is_left_out():
    assert not one_of_each([("a.py::test_it_lives_at_length[mlx-1]", "mlx", False)])
