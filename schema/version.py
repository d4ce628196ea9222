"""The version of the file format, and its history.

Version 0 may change freely: a file of another build may fail in any typed way.
Version 1 will be frozen, and from then on a change of meaning is a new version here,
with its date, and old files load or fail with `UnsupportedVersion` by decision.

    0   2026-11-21   first layout: header, blobs, program
    0   2026-11-21   growing states, callers' arrays, the position, verdicts on writes
    0   2026-11-21   data files
    0   2026-11-22   blocks of methods, for control flow
    0   2026-11-22   windows of rings
    0   2026-11-22   row lengths: how many tokens of each row a call adds
    0   2026-11-23   a delegate's code is a block of its method
    0   2026-11-23   cursors, and values that are fields of them
    0   2026-11-23   accesses: what writes do to states, in the file
    0   2026-11-23   kvc::after: several writes of a call at a cursor
    0   2026-11-23   advances without a number, which a counter says after the call
    0   2026-11-23   quotients of sizes; results that are numbers
    0   2026-11-26   variants: methods by several recipes
    0   2026-11-26   what a calibration was made with
"""

from typing import Final

FORMAT_VERSION: Final = 0
