"""`KvcCache`: sessions of kvc in the place of a cache of transformers.

In: the columns of tokens that `generate` of transformers feeds, with their mask. Out:
logits of the last columns. A column that the mask hides from a row is never run, so
each row holds its own tokens, wherever a batch is padded.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from transformers.cache_utils import Cache

from kvc.runtime import Program
from kvc.runtime.embedding.parts import InParts
from kvc.runtime.generation.image_prefill import picturing_of
from kvc.runtime.generation.picture_places import places_of
from kvc.runtime.memory.arrays import Array
from kvc.schema.errors import BadSetting
from kvc.transformers.rows import Rows, SeparateRows, open_rows
from kvc.transformers.token_calls import Floats, Tokens

Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Beside:
    """What the rows of a first call have beside their tokens.

    Attributes:
        encoded: the input of each row's encoder, without padding; None without one.
        pictures: the pictures of each row; None without any.
        embeds: embeddings in place of tokens, float32 [rows, columns, hidden].
    """

    encoded: Sequence[Array] | None = None
    pictures: Sequence[Sequence[InParts]] | None = None
    embeds: Floats | None = None

    @property
    def is_plain(self) -> bool:
        """Return whether tokens of the decoder are all that methods take."""
        return self.pictures is None and self.embeds is None


class KvcCache(Cache):
    """The content of sessions, as a cache that transformers' `generate` takes.

    It is rewound, reordered and copied like a cache of transformers. A copy
    (`copy.deepcopy`) shares memory pages with its original.

    Attributes:
        program: the program whose sessions hold the tokens.
    """

    def __init__(self, program: Program) -> None:
        """Begin without rows; the first call determines how many there are."""
        super().__init__(layers=[])
        self.program = program
        self._rows: Rows | None = None
        self._shown = np.zeros((0, 0), np.bool_)  # [rows, columns]
        self._records = self._failed = False
        self._is_user_defined = False  # as `generate` notes

    def feed(self, tokens: Ids, shown: Mask, keep: int, beside: Beside) -> Floats:
        """Run new columns of tokens; return the logits of the last ones.

        Args:
            tokens: the new columns, int64 [rows, n].
            shown: which of all columns each row sees, [rows, columns]; the last n are
                the new ones.
            keep: of how many last columns to return logits.
            beside: what rows have beside tokens, in the first call.

        Returns:
            float32 [rows, keep, vocab]. A hidden column has the logits of the one
            before it, and zeros if there is none.

        Raises:
            BadSetting: the number of rows or columns is not that of the cache.
            ExecutionError: as `Session.call`.
        """
        if self._failed:
            expected = "a cache whose last call did not fail"
            raise BadSetting(name="past_key_values", expected=expected, found="another")
        count, new = tokens.shape
        self._check(count, shown.shape[1] - new)
        fresh = shown[:, shown.shape[1] - new :]
        parts = [row[seen].tolist() for row, seen in zip(tokens, fresh, strict=True)]
        self._failed = True  # until all rows have run
        if self._rows is None:
            found = self._begin(parts, fresh, keep, beside)
        else:
            found = self._rows.run(parts, keep)
        self._shown, self._failed = shown, False
        return _placed(found, fresh, keep)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return how many columns the cache holds, hidden ones included."""
        return int(self._shown.shape[1])

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """Return -1: sessions grow, up to their capacity."""
        return -1

    def crop(self, tokens_to_remove: int) -> None:
        """Drop the last columns; their number is given as 0 or less.

        Raises:
            BadSetting: the number is above 0, or there are not as many columns.
            NotRewindable: a state cannot be restored.
        """
        held, count = self.get_seq_length(), -tokens_to_remove
        if not 0 <= count <= held:
            expected = f"from {-held} to 0, the columns to remove as a negative number"
            raise BadSetting(name="crop", expected=expected, found=tokens_to_remove)
        if self._rows is not None and count:
            self._rows.drop(self._shown[:, held - count :].sum(axis=1).tolist())
            self._shown = self._shown[:, : held - count]

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Let each row continue the row of this index."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep the rows of these indices, in their order."""
        if self._rows is not None:
            chosen = [int(index) for index in indices]
            self._rows = self._rows.select(chosen)
            self._shown = self._shown[chosen]

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row."""
        rows = torch.arange(len(self._shown))
        self.batch_select_indices(rows.repeat_interleave(repeats))

    def activate_past_recording(self) -> None:
        """Keep what `crop` needs to undo the last call."""
        self._records = True

    def reset(self) -> None:
        """Drop all rows."""
        if self._rows is not None:
            self._rows.close()
        self._rows, self._shown = None, np.zeros((0, 0), np.bool_)
        self._failed = False

    @property
    def batch_size(self) -> int:
        """Return the number of rows, -1 before the first call."""
        return -1 if self._rows is None else len(self._shown)

    @property
    def is_compileable(self) -> bool:
        """Return False: the cache is no tensor."""
        return False

    @property
    def is_croppable(self) -> bool:
        """Return whether `crop` leaves no trace."""
        return True

    @property
    def is_initialized(self) -> bool:
        """Return whether the cache has rows."""
        return self._rows is not None

    def __len__(self) -> int:
        """Return 0, as there are no layers."""
        return 0

    def __bool__(self) -> bool:
        """Return True, also of a cache without layers."""
        return True

    def __deepcopy__(self, memo: object) -> "KvcCache":
        """Return a copy, whose rows are forks."""
        made = KvcCache(self.program)
        made._rows = None if self._rows is None else self._rows.copied()
        made._shown, made._records = self._shown.copy(), self._records
        made._failed = self._failed
        return made

    def __repr__(self) -> str:
        """Return the number of rows and columns."""
        rows, columns = self._shown.shape
        return f"KvcCache({rows} rows of {columns} columns)"

    def _check(self, rows: int, before: int) -> None:
        held = self.get_seq_length()
        if self._rows is not None and rows != len(self._shown):
            expected = f"{len(self._shown)} rows, as the cache has"
            raise BadSetting(name="input_ids", expected=expected, found=f"{rows}")
        if before != held:
            expected = f"a column for each of {held} cached tokens, and of the new ones"
            raise BadSetting(
                name="attention_mask", expected=expected, found=f"{before} before them"
            )

    def _begin(
        self, parts: Sequence[Tokens], fresh: Mask, keep: int, beside: Beside
    ) -> list[Floats]:
        """Run first tokens; rows that are equal run once, and are copied."""
        firsts = _firsts(parts, beside)
        copies = [row != first for row, first in enumerate(firsts)]
        rows = open_rows(self.program, len(parts), self._records, not beside.is_plain)
        if beside.encoded is not None:
            rows.encode(beside.encoded, copies)
        given = [() if c else part for part, c in zip(parts, copies, strict=True)]
        if isinstance(rows, SeparateRows) and beside.pictures is not None:
            found = _run_pictures(rows, given, keep, beside.pictures)
        elif isinstance(rows, SeparateRows) and beside.embeds is not None:
            pairs = zip(rows.sessions, beside.embeds, fresh, strict=True)
            run = rows.calls.run_embeds
            found = [run(session, one[seen], keep) for session, one, seen in pairs]
        else:
            found = rows.run(given, keep)
        if any(copies):
            rows = rows.select(firsts)
            found = [found[first] for first in firsts]
        self._rows = rows
        return found


def _run_pictures(
    rows: SeparateRows,
    parts: Sequence[Tokens],
    keep: int,
    pictures: Sequence[Sequence[InParts]],
) -> list[Floats]:
    """Run the tokens of each row with its pictures; see `TokenCalls.run`."""
    alone = [() if shown else part for part, shown in zip(parts, pictures, strict=True)]
    found = rows.run(alone, keep)
    for row, part in enumerate(parts):
        session = rows.sessions[row]
        picturing = picturing_of(session, places_of(session), [pictures[row]])
        if part and picturing is not None:
            found[row] = rows.calls.run_pictures(session, part, picturing, keep)
    return found


def _firsts(parts: Sequence[Tokens], beside: Beside) -> list[int]:
    """Return for each row the first that is equal to it, with all that it is given."""
    if not beside.is_plain:
        return list(range(len(parts)))
    keys = [tuple[object, ...](part) for part in parts]
    if beside.encoded is not None:
        pairs = zip(keys, beside.encoded, strict=True)
        keys = [(*key, one.shape, one.tobytes()) for key, one in pairs]
    return [keys.index(key) for key in keys]


def _placed(found: Sequence[Floats], shown: Mask, keep: int) -> Floats:
    """Return the logits of the last columns, float32 [rows, keep, vocab].

    Args:
        found: for each row the logits after its last tokens, [n, vocab].
        shown: which columns are tokens of each row.
        keep: the number of columns to return.
    """
    made = np.zeros((len(found), keep, found[0].shape[-1]), np.float32)
    for row, logits in enumerate(found):
        from_end = int(shown[row].sum()) - np.cumsum(shown[row])[-keep:]
        known = from_end < len(logits)
        made[row, known] = logits[len(logits) - 1 - from_end[known]]
    return made
