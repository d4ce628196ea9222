"""Journals that were interrupted, damaged, or are of another batch."""

import os

import pytest

from kvc.schema.errors import (
    BadJournal,
    BatchDiffers,
    BatchRunning,
    CannotWrite,
    FileProblem,
)
from kvc.serving.batch.journal import Identity, Journal
from kvc.serving.batch.lines import Line
from kvc.serving.batch.outcomes import Outcome

IDENTITY = Identity("bundle", "settings", "input")


def line(number):
    return Line(number, b"line %d" % number)


def outcome(number, text="a", failed=False):
    return Outcome(number, line(number).key, failed, {"id": number, "text": text})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out.journal"


@pytest.fixture
def three(path):
    with Journal.begin(path, IDENTITY) as journal:
        journal.add(outcome(2))
        journal.add(outcome(5_000, failed=True))
        journal.add(outcome(1, "ä"))
    return path


def resumed(path, identity=IDENTITY, anyway=False):
    return Journal.resume(path, identity, anyway)


def test_outcomes_are_found_by_the_number_of_their_line(three):
    with resumed(three) as journal:
        assert (journal.index.count, journal.index.failed) == (3, 1)
        assert journal.outcome(1) == '{"id": 1, "text": "ä"}\n'.encode()
        assert journal.outcome(3) is journal.outcome(99_999) is None
        assert [journal.has(line(number)) for number in (1, 3, 5_000)] == [
            True,
            False,
            True,
        ]


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_torn_end_is_cut_off_and_its_row_done_again(three, cut):
    whole = three.read_bytes()
    three.write_bytes(whole[:-cut])
    with resumed(three) as journal:
        assert journal.index.count == 2
        assert not journal.has(line(1))
        journal.add(outcome(1, "ä"))
    assert three.read_bytes() == whole


def test_every_part_of_a_first_line_can_be_all_that_there_is(path):
    Journal.begin(path, IDENTITY).close()
    head = path.read_bytes()
    for end in range(len(head)):
        path.write_bytes(head[:end])
        with resumed(path) as journal:
            assert journal.index.count == 0
        assert path.read_bytes() == head


def test_a_damaged_line_is_left_out(three):
    raw = bytearray(three.read_bytes())
    raw[raw.index(b'"text": "a"')] ^= 1
    three.write_bytes(raw)
    with resumed(three) as journal:
        assert (journal.index.count, journal.damaged) == (2, 1)
        assert not journal.has(line(2))


def test_what_changes_while_it_is_open_is_noticed(three):
    with resumed(three) as journal:
        raw = bytearray(three.read_bytes())
        raw[raw.index(b'"text": "a"')] ^= 1
        three.write_bytes(raw)
        with pytest.raises(FileProblem, match="outcome of line 2 has changed"):
            journal.outcome(2)


@pytest.mark.parametrize("what", ["bundle", "settings", "input"])
def test_a_journal_of_another_batch_is_refused_unless_told(three, what):
    facts = {"bundle": "bundle", "settings": "settings", "input": "input"}
    other = Identity(**facts | {what: "new"})
    with pytest.raises(BatchDiffers) as caught:
        resumed(three, other)
    assert (caught.value.what, caught.value.found) == (what, "new")
    with resumed(three, other, anyway=True) as journal:
        assert journal.index.count == 3


def test_a_line_that_has_changed_is_refused_or_done_again(three):
    other = Line(5_000, b"other")
    with resumed(three) as journal, pytest.raises(BatchDiffers, match="line 5000"):
        journal.has(other)
    with resumed(three, anyway=True) as journal:
        assert not journal.has(other)
        assert (journal.index.count, journal.index.failed) == (2, 0)


@pytest.mark.parametrize(
    "content",
    [b"text\n", b"text", b"[1]\n", b'{"journal": "kvc batch journal", "version": 9}\n'],
)
def test_a_file_of_something_else_is_refused_and_stays(path, content):
    path.write_bytes(content)
    with pytest.raises(BadJournal):
        resumed(path)
    assert path.read_bytes() == content


def test_one_process_at_a_time_has_a_journal(three):
    with resumed(three), pytest.raises(BatchRunning):
        resumed(three)
    with resumed(three), pytest.raises(BatchRunning):
        Journal.begin(three, IDENTITY)


def test_a_full_disk_is_told_and_what_was_written_before_stays(three, monkeypatch):
    real = os.pwrite

    def full(fd, content, place):
        if len(content) > 10:
            return real(fd, content[:10], place)  # what fits
        raise OSError(28, "No space left on device")

    with resumed(three) as journal:
        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(CannotWrite, match="No space left on device"):
            journal.add(outcome(7))
        monkeypatch.undo()
    with resumed(three) as journal:
        assert (journal.index.count, journal.has(line(7))) == (3, False)


def test_outcomes_that_lines_no_longer_have_are_forgotten(three):
    seen = bytearray(3)
    seen[2] = 1
    with resumed(three) as journal:
        journal.index.keep(seen)
        assert (journal.index.count, journal.index.failed) == (1, 0)


def test_a_folder_that_is_missing_is_told(tmp_path):
    with pytest.raises(CannotWrite, match="No such file"):
        Journal.begin(tmp_path / "no" / "out.journal", IDENTITY)
