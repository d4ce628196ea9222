"""`Ids`: tells which ids of a batch's lines were there before, in little memory.

Texts are kept as hashes of 128 bits, whole numbers as they are. The numbers of lines,
which are the ids of lines without one, are kept as a byte for each line.
"""

import hashlib

from kvc.schema.errors import BadRow


class Ids:
    """The ids of the lines so far."""

    def __init__(self) -> None:
        self._given = set[bytes | int]()
        self._numbers = bytearray()  # 1 for a line whose id is its number

    def add(self, one: str | int, number: int) -> None:
        """Add the id of a line.

        Args:
            one: the id.
            number: the number of the line.

        Raises:
            BadRow: an earlier line has the id.
        """
        if isinstance(one, int):
            taken = one in self._given or self._is_number(one)
            if one == number and not taken:
                self._numbers.extend(bytes(number + 1 - len(self._numbers)))
                self._numbers[number] = 1
                return
            key: bytes | int = one
        else:
            raw = one.encode("utf-8", "surrogatepass")
            key = hashlib.blake2b(raw, digest_size=16).digest()
            taken = key in self._given
        if taken:
            raise BadRow(reason=f"id: an earlier line has the id {one!r:.80}")
        self._given.add(key)

    def _is_number(self, one: int) -> bool:
        return 0 <= one < len(self._numbers) and self._numbers[one] == 1
