"""Owns how much a compressed payload holds, found out without holding it. Knows nothing of batches or of `headstone`.

The oracle's codecs take whatever a payload holds, and snappy's takes what it merely claims: a few bytes that claim
gigabytes would end the process that judges them.
"""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from contextlib import suppress
from typing import BinaryIO, cast

import cramjam
import lz4.frame
import zstandard

from tests.oracle.compression import XERIAL_HEADER, XERIAL_MAGIC

PAYLOAD_BYTES_MAX = 256 << 20
"""Decompressed, one batch may have as much: the README says so under Limits."""
RATIO_MAX = 32 << 10
"""Of zstd, the densest codec: a block of 128 KiB takes four bytes at least."""
STEP_BYTES = 1 << 20
DECOMPRESSION_ERRORS = (
    ValueError, EOFError, OSError, RuntimeError, struct.error, zlib.error, zstandard.ZstdError, cramjam.DecompressionError,
)  # fmt: skip


class TooLarge(ValueError):
    pass


def check_size(codec: str, packed: bytes) -> None:
    """Raises TooLarge for a payload that holds more than a batch may have; a bad one may raise what its codec raises."""
    if not packed:
        return
    if codec == "snappy":
        size = sum(cramjam.snappy.decompress_raw_len(block) for block in _snappy_blocks(packed))
    elif codec == "none" or len(packed) * RATIO_MAX <= PAYLOAD_BYTES_MAX:
        return
    else:
        size = _stream_size(codec, packed)
    if size > PAYLOAD_BYTES_MAX:
        raise TooLarge(f"{codec} data of {size} bytes or more")


def _snappy_blocks(packed: bytes) -> list[bytes]:
    if not packed.startswith(XERIAL_MAGIC):
        return [packed]
    blocks, at = [], len(XERIAL_HEADER)
    while at < len(packed):
        (size,) = struct.unpack_from(">i", packed, at)
        if size < 0:
            raise ValueError("snappy block of negative size")
        blocks.append(packed[at + 4 : at + 4 + size])
        at += 4 + size
    return blocks


def _stream_size(codec: str, packed: bytes) -> int:
    """Counts no further than it must, nor beyond damage: what is wrong there is the oracle's to say."""
    size = 0
    with suppress(*DECOMPRESSION_ERRORS), _stream(codec, packed) as stream:
        while size <= PAYLOAD_BYTES_MAX and (step := stream.read(STEP_BYTES)):
            size += len(step)
    return size


def _stream(codec: str, packed: bytes) -> BinaryIO:
    source = io.BytesIO(packed)
    if codec == "gzip":
        return cast(BinaryIO, gzip.GzipFile(fileobj=source))
    if codec == "lz4":
        return cast(BinaryIO, lz4.frame.LZ4FrameFile(source))
    assert codec == "zstd"
    return cast(BinaryIO, zstandard.ZstdDecompressor().stream_reader(source, read_across_frames=True))
