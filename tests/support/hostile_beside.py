"""Hostile files beside a bundle: saved sessions, and data files.

In: a bundle, the number of a case. Out: a `Verdict`. A session that is accepted is
saved and restored once more, and the two must give the same from then on. Where the
saved content was not changed, the session must also give the same as a session that was
never saved. A bundle over a changed data file, sealed again with right digests, must
compute what the original bundle does, unless the bundle was changed to agree with the
file's index. No error but `KvcError` may be raised.
"""

import hashlib
import json
import random
import re
from dataclasses import replace
from pathlib import Path

from hostile_cases import Verdict, call_by_turns, escaped, refused, results_of
from hostile_texts import Json
from program_mutations import Mutator, mutate_bytes
from sealing import parts, seal, seal_data

from kvc.runtime import Program, Session, load
from kvc.runtime.data.checked_file import DIGEST_NBYTES, LEAD
from kvc.schema.codec import decode, decode_index, encode, encode_index
from kvc.schema.container import split_bundle
from kvc.schema.errors import KvcError
from kvc.schema.model import Blob, DataFile

_RESULT = re.compile(".*: [0-9a-f]{16}")  # a line of a call that is no error


class Sessions:
    """Variants of a saved session of a bundle."""

    def __init__(self, bundle: Path) -> None:
        self.name = f"session of {bundle.stem}"
        self._bundle = bundle
        saved = bundle.with_suffix(".session")
        with load(bundle) as program, self._begun(program) as session:
            session.save(saved)
        raw = saved.read_bytes()
        self._lead = raw[: LEAD.size]
        start = LEAD.size + LEAD.unpack(self._lead)[2]
        self._states = raw[start:-DIGEST_NBYTES]
        self._json = Json(json.loads(raw[LEAD.size : start]))

    def content(self, number: int) -> bytes:
        dice = random.Random(f"{self.name} {number}")
        text, states = self._json.unchanged, self._states
        if dice.random() < 0.9:
            text = self._json.text(dice)
        if dice.random() < 0.3:
            states = mutate_bytes(states, dice)
        if dice.random() < 0.1:
            states = states[: dice.randrange(len(states) + 1)]
        raw = self._file(text, states)
        if dice.random() < 0.05:
            raw = mutate_bytes(raw, dice)
        return raw + hashlib.sha256(raw).digest()

    def _file(self, text: bytes, states: bytes) -> bytes:
        magic, version, _ = LEAD.unpack(self._lead)
        return LEAD.pack(magic, version, len(text)) + text + states

    def try_case(self, number: int, folder: Path) -> Verdict:
        path, again = folder / "case.session", folder / "again.session"
        path.write_bytes(content := self.content(number))
        try:
            with load(self._bundle) as program, program.restore(path) as first:
                first.save(again)
                with program.restore(again) as second:
                    one, two = (
                        _calls(program, s, number, path) for s in (first, second)
                    )
                if content.startswith(self._file(self._json.unchanged, self._states)):
                    with self._begun(program) as kept:
                        two = _calls(program, kept, number, path)
        except KvcError as error:
            return refused(error, "a session")
        except Exception as error:
            return escaped(error)
        return Verdict("same") if one == two else Verdict("differs", f"{one} | {two}")

    def _begun(self, program: Program) -> Session:
        """Return a new session after the same calls as the session that was saved."""
        session = program.session()
        _calls(program, session, 0, self._bundle)
        return session


def _calls(program: Program, session: Session, number: int, path: Path) -> list[str]:
    return list(call_by_turns(program, session, random.Random(number), path))


class DataFiles:
    """Variants of a data file with another index, and bundles that name its digest."""

    def __init__(self, bundle: Path) -> None:
        self.name = f"data of {bundle.stem}"
        self._bundle = bundle
        home = bundle.parent / "apart"
        home.mkdir(exist_ok=True)
        small = split_bundle(bundle, home / bundle.name)
        assert small is not None
        blobs, raw = parts(home / bundle.name)
        self._blobs, self._program = blobs, decode(raw, "bundle")
        named = ((i, one) for i, one in enumerate(self._program.files) if one.name)
        self._place, self._file = next(named)
        self._content, index = parts(home / self._file.name)
        self._index = decode_index(index, "data")
        self._mutator = Mutator(self._index)
        mine = [i for i, b in enumerate(self._program.blobs) if b.file == self._place]
        self._places = sorted(mine, key=lambda i: self._program.blobs[i].offset)

    def content(self, number: int) -> bytes | None:
        """Return the bytes of a case's data file; None if its index has no encoding."""
        return self._made(number)[0]

    def _made(self, number: int) -> tuple[bytes | None, tuple[Blob, ...]]:
        dice = random.Random(f"{self.name} {number}")
        index, content = self._index, self._content
        if dice.random() < 0.85:
            index = self._mutator.mutate(dice)
        if dice.random() < 0.4:
            content = mutate_bytes(content, dice)
        try:
            raw = encode_index(index)
        except Exception:  # what the format has no place for is no file
            return None, index
        raw = mutate_bytes(raw, dice) if dice.random() < 0.1 else raw
        return seal_data(content, raw), index

    def _bundle_over(self, raw: bytes, index: tuple[Blob, ...], agreed: bool) -> bytes:
        start = int.from_bytes(raw[24:32], "little")
        files, blobs = list(self._program.files), list(self._program.blobs)
        digest = hashlib.sha256(raw[start:]).digest()
        files[self._place] = DataFile(self._file.name, digest)
        if agreed:
            for place, blob in zip(self._places, index, strict=False):
                blobs[place] = replace(blob, file=self._place)
        program = replace(self._program, files=tuple(files), blobs=tuple(blobs))
        return seal(self._blobs, encode(program))

    def try_case(self, number: int, folder: Path) -> Verdict:
        """Run the bundle over the changed data file, and compare with the original."""
        raw, index = self._made(number)
        agreed = number % 2 == 1
        if raw is None:
            return Verdict("cannot be made")
        path = folder / "case.kvc"
        try:
            path.write_bytes(self._bundle_over(raw, index, agreed))
        except Exception:
            return Verdict("cannot be made")
        (folder / self._file.name).write_bytes(raw)
        try:
            found = results_of(path, number)
        except KvcError as error:
            return refused(error, "a data file")
        except Exception as error:
            return escaped(error)
        if agreed and index != self._index:
            return Verdict("other data")
        for one, other in zip(found, results_of(self._bundle, number), strict=True):
            if one != other and not _RESULT.fullmatch(one):
                return Verdict("refused", "a data file: in a call")
            if one != other:
                return Verdict("differs", f"{one} | {other}")
        return Verdict("same")
