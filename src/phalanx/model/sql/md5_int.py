"""`md5_int`, the hash of the expression draft (its Appendix D): a signed 64-bit integer.

It is the first 8 bytes of the MD5 digest, most significant byte first. NULL gives NULL. The draft
hashes text; for each type these bytes are hashed:

| type                                | bytes                                                |
|-------------------------------------|------------------------------------------------------|
| string of any layout                | the UTF-8 bytes                                      |
| binary of any layout                | the bytes                                            |
| float                               | the text of the float64 with the same value          |
| integer, decimal, boolean, date,    | the text that DataFusion casts the value to:         |
| time, timestamp (zoned ones in UTC) | `42`, `14.20`, `true`, `2025-12-10`                  |

So equal numbers of different widths have the same hash, as the draft's rule 3 demands, and so do
equal days of both date types. The draft's note defines the hash as a cast of hex text, which no
engine can evaluate; this module follows the draft's prose.

`md5_int(concat(…))` over several values ignores NULLs, and is NULL only where all of them are: the
draft's rule 4 takes precedence over `concat`, which would give an empty text.
"""

from __future__ import annotations

import functools
import operator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from datafusion import col, functions

from phalanx.errors import InvalidSpec
from phalanx.model.sql.session import create_relation

_HEX_VALUES = np.zeros(256, dtype=np.uint8)
_HEX_VALUES[[*b"0123456789abcdef"]] = range(16)
_IS_BYTES = (pt.is_binary, pt.is_large_binary, pt.is_fixed_size_binary, pt.is_binary_view)
_IS_STRING = (pt.is_string, pt.is_large_string, pt.is_string_view)


def is_hashed_as_bytes(value: pa.DataType) -> bool:
    """Return whether the bytes of a value are hashed, not its text; refuse types without either."""
    if any(test(value) for test in (*_IS_BYTES, *_IS_STRING)):
        return True
    if pt.is_nested(value) or pt.is_interval(value) or pt.is_duration(value):
        raise InvalidSpec(
            f"Cannot hash a column of type {value}: md5_int hashes numbers, booleans, strings, "
            "binary, dates, times and decimals."
        )
    return False


def md5_int(*columns: pa.Array) -> pa.Array:
    """Hash the concatenated texts or bytes of each row; NULL only where all are NULL."""
    parts = [column.cast(pa.large_binary()) for column in columns]
    present = functools.reduce(operator.or_, (_find_present(part) for part in parts))
    joined = parts[0]
    if len(parts) > 1:
        end = pa.scalar(b"", pa.large_binary())
        joined = pc.binary_join_element_wise(
            *parts, end, null_handling="replace", null_replacement=""
        )
    numbers = np.zeros(len(present), dtype=np.int64)
    if present.any():
        numbers[present] = _hash_to_int64(joined.filter(pa.array(present)))
    return pa.array(numbers, mask=~present)


def _find_present(column: pa.Array) -> np.ndarray:
    found: np.ndarray = column.is_valid().to_numpy(zero_copy_only=False)
    return found


def _hash_to_int64(values: pa.Array) -> np.ndarray:
    """Return the first 8 bytes of each digest; every distinct value is hashed once."""
    encoded = values.dictionary_encode()
    frame = create_relation(pa.RecordBatch.from_arrays([encoded.dictionary], names=["value"]))
    hashed = frame.select(functions.md5(col("value")).alias("hash")).collect()
    hexed = pa.concat_arrays([batch.column(0).cast(pa.binary()) for batch in hashed])
    digests = hexed.cast(pa.binary(32))
    text = np.frombuffer(digests.buffers()[1], np.uint8, 32 * len(digests), 32 * digests.offset)
    nibbles = _HEX_VALUES[text.reshape(-1, 32)[:, :16]]
    leading = np.ascontiguousarray(nibbles[:, ::2] << 4 | nibbles[:, 1::2])
    numbers = leading.view(">i8").ravel().astype(np.int64)
    found: np.ndarray = numbers[encoded.indices.to_numpy(zero_copy_only=False)]
    return found
