"""The limits of a bundle; beyond one is `LimitExceeded`, raised before any use.

The numbers are far above real models and far below what harms a reader.
"""

from typing import Final

MAX_PROGRAM_NBYTES: Final = 64 << 20
MAX_INDEX_NBYTES: Final = 8 << 20
MAX_TABLES: Final = 200_000
MAX_METHODS: Final = 64
MAX_BLOCKS: Final = 10_000  # of a method
MAX_FILES: Final = 256  # each is an open descriptor
MAX_BLOBS: Final = 100_000  # of a program, and of an index
MAX_STATES: Final = 100_000
MAX_NAMES: Final = 1_000_000
MAX_VALUES: Final = 1_000_000
MAX_INSTRUCTIONS: Final = 1_000_000
MAX_LIST: Final = 100_000  # items of one list argument, arguments of one instruction
MAX_RANK: Final = 8
MAX_DIM: Final = (1 << 31) - 1
MAX_SYMBOLS_TOGETHER: Final = 6  # in the types and sizes of one instruction
MAX_TENSOR_NBYTES: Final = 1 << 40
MAX_BLOB_ALIGN: Final = 1 << 16
MAX_NAME_NBYTES: Final = 256
SCRATCH_ALIGN: Final = 64
