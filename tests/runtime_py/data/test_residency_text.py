"""The residency report as text."""

from kvc.runtime import BlobResidency, Residency, Totals


def blob(names, nbytes, methods, file="", **fields):
    plain = {"handles": 0, "mapped": 0, "touched": 0, "shared": 0}
    plain |= {"packed": 0, "freed": 0}
    return BlobResidency(names, nbytes, methods, file, **{**plain, **fields})


def report(*blobs):
    return Residency("map", blobs, Totals.over(blobs))


def lines_of(report):
    return str(report).splitlines()


def test_used_blobs_are_listed_and_all_are_added_up():
    lines = lines_of(
        report(
            blob(("a",), 1000, ("f",), handles=1, mapped=1000, touched=900, shared=9),
            blob(("b", "c"), 24, ("f", "g"), "w.kvd", handles=2, mapped=24, packed=48),
            blob(("d",), 5, (), freed=0),
        )
    )
    assert lines == [
        "memory of the data, loaded with mode map, in bytes:",
        "  blobs  bytes  mapped  touched  shared  packed  freed  handles  name",
        "      1  1,000   1,000      900       9       0      0        1  a",
        "      1     24      24        0       0      48      0        2  "
        "b = c, in w.kvd",
        "  1 blob not used and not listed",
        "  bytes  mapped  touched  shared  packed  freed  used by",
        "  1,000   1,000      900       9       0      0  f",
        "     24      24        0       0      48      0  f + g",
        "      5       0        0       0       0      0  no method",
        "  1,029   1,024      900       9      48      0  all",
    ]


def test_names_that_differ_only_in_a_number_share_a_row_the_largest_first():
    lines = lines_of(
        report(
            blob(("norm",), 8, ("f",), handles=1),
            blob(("layers.0.q", "layers.0.k"), 30, ("f",), handles=1, mapped=30),
            blob(("layers.0.v",), 4, ("f",), handles=1, touched=None),
            blob(("layers.1.q", "layers.1.k"), 50, ("f",), handles=2, mapped=50),
            blob(("layers.1.v",), 5, ("f",), handles=1, touched=2),
            blob(("layers.2.v",), 6, ("f",), "w.kvd", handles=1),
        )
    )
    assert lines[1:6] == [
        "  blobs  bytes  mapped  touched  shared  packed  freed  handles  name",
        "      2     80      80        0       0       0      0        3  "
        "layers.{0..1}.q = layers.{0..1}.k",
        "      2      9       0        ?       0       0      0        2  "
        "layers.{0..1}.v",
        "      1      8       0        0       0       0      0        1  norm",
        "      1      6       0        0       0       0      0        1  "
        "layers.2.v, in w.kvd",
    ]


def test_what_nobody_can_say_is_a_question_mark():
    lines = lines_of(report(blob(("a",), 9, (), touched=None, shared=None, freed=None)))
    assert lines[-1].split() == ["9", "0", "?", "?", "0", "?", "all"]


def test_names_cannot_move_the_cursor():
    lines = lines_of(report(blob(("a\x1b[2J",), 9, ("f\n",), "w\t.kvd", handles=1)))
    assert "\x1b" not in "".join(lines)
    assert lines[2].endswith(r"a\x1b[2J, in w\x09.kvd")
    assert lines[4].endswith(r"f\x0a")
