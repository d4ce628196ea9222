from kvc.schema.families import families


def patterns(*names):
    return [p for p, _ in families(names, name=lambda n: n, like=lambda n: 0)]


def test_names_that_differ_in_a_number_are_one_line():
    assert patterns("l.0.k", "l.0.v", "l.1.k", "l.1.v") == ["l.{0..1}.k", "l.{0..1}.v"]


def test_numbers_that_do_not_vary_stay():
    assert patterns("a.0.b.3", "a.1.b.3") == ["a.{0..1}.b.3"]
    assert patterns("a.5.b", "c") == ["a.5.b", "c"]


def test_gaps_show():
    assert patterns("l.0", "l.2") == ["l.{0,2}"]
    assert patterns("l.0", "l.2", "l.4", "l.6") == ["l.{0,2,4,..6}"]


def test_digits_inside_a_word_are_no_number():
    assert patterns("conv1d.w", "conv2d.w") == ["conv1d.w", "conv2d.w"]
