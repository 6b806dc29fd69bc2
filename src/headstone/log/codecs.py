"""The record section of a batch, compressed and not: Kafka's five codecs and the framing Kafka gives each.

Every reader is bounded: a payload may promise or hold any size, but no more than `size_max` and a small constant is allocated,
and memory grows with what a payload can hold, not with what it claims. Knows nothing about records, batches or files: the
caller says where a bad payload was. Thread-safe: a context belongs to one thread.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

import lz4.frame
import zstandard
from cramjam import DecompressionError, snappy
from isal import igzip_lib

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Payload = bytes | bytearray | memoryview | npt.NDArray[np.uint8]

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")

# Level 2 of ISA-L: at least five times as fast as zlib's level 6, whose output is 6 to 15 % smaller.
GZIP_LEVEL = igzip_lib.ISAL_DEFAULT_COMPRESSION
GZIP_BYTES_MIN = 18
# 258 bytes from a length code and a distance code of one bit each.
GZIP_RATIO_MAX = 1032

XERIAL_MAGIC = b"\x82SNAPPY\0"
XERIAL_HEADER = XERIAL_MAGIC + b"\0\0\0\1\0\0\0\1"
XERIAL_BLOCK_BYTES = 32 << 10
# 64 bytes from a copy element of three.
SNAPPY_RATIO_MAX = 22

LZ4_MAGIC = b"\x04\x22\x4d\x18"
# Version 1, independent blocks of 64 KiB, nothing else; then the header's own checksum.
LZ4_KAFKA_HEADER = LZ4_MAGIC + b"\x60\x40\x82"
LZ4_BLOCK_BYTES = {4: 64 << 10, 5: 256 << 10, 6: 1 << 20, 7: 4 << 20}
# A length grows by 255 with every byte spent on it.
LZ4_RATIO_MAX = 255

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# A descriptor that announces neither size, checksum nor dictionary, as Kafka's writer gives.
ZSTD_PLAIN_FRAME = ZSTD_MAGIC + b"\0"
# 0x184d2a50 to 0x184d2a5f, whose content a reader skips (RFC 8878, 3.1.2).
ZSTD_SKIPPABLE_TAIL = b"\x2a\x4d\x18"
ZSTD_LEVEL = 3
ZSTD_BLOCK_BYTES_MAX = 128 << 10
# A block from its header of three bytes and the one byte that it repeats.
ZSTD_RATIO_MAX = ZSTD_BLOCK_BYTES_MAX // 4
# What zstd-jni, hence Kafka, refuses to exceed.
ZSTD_WINDOW_BYTES_MAX = 1 << 27
# Up to here a reader takes the window a frame asks for; every level below 20 asks for no more.
ZSTD_WINDOW_LOG_PLAIN = 23
# One allocation of this much, or of this many times the payload, is taken without asking.
ZSTD_ROOM_BYTES_PLAIN = 1 << 20
ZSTD_ROOM_RATIO_PLAIN = 16

RATIO_MAX = (1, GZIP_RATIO_MAX, SNAPPY_RATIO_MAX, LZ4_RATIO_MAX, ZSTD_RATIO_MAX)
"""By codec: the most that a payload can grow, so that no header need be believed beyond it."""


class CodecError(ValueError):
    """The payload does not fit its codec, or holds more than allowed; `reason` has no place in it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _Contexts(threading.local):
    """Zstandard's contexts are expensive to make and serve one thread at a time."""

    def __init__(self) -> None:
        self.zstd_reader = zstandard.ZstdDecompressor()
        self.zstd_writer = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_content_size=False)


_contexts = _Contexts()


def decompress(codec: int, payload: Payload, size_max: int) -> bytes | bytearray | memoryview:
    """The whole record section, of at most `size_max` bytes; codec 0 gives a view of the payload itself.

    Raises CodecError for a payload that is truncated, malformed, followed by anything, or larger than `size_max`.
    """
    view = memoryview(payload)  # type: ignore[arg-type]  # NumPy's stubs hide __buffer__ before 3.12
    if codec == LZ4:
        return _lz4_read(view, size_max)
    if codec == ZSTD:
        return _zstd_read(view, size_max)
    if codec == SNAPPY:
        return _snappy_read(view, size_max)
    if codec == GZIP:
        return _gzip_read(view, size_max)
    if codec == NONE:
        if len(view) > size_max:
            raise _too_large("none", size_max)
        return view
    raise CodecError(f"unknown codec {codec}")


def compress(codec: int, payload: Payload) -> bytes:
    """What Kafka's reader takes for `payload`; codec 0 copies.

    Gzip is one member; snappy is xerial's stream of 32 KiB blocks; lz4 is a frame of independent 64 KiB blocks without
    content size or checksums; zstd is one frame at level 3 without content size.
    """
    view = memoryview(payload)  # type: ignore[arg-type]  # NumPy's stubs hide __buffer__ before 3.12
    if codec == LZ4:
        frame: bytes = lz4.frame.compress(
            view, block_size=lz4.frame.BLOCKSIZE_MAX64KB, block_linked=False, store_size=False
        )
        return frame
    if codec == ZSTD:
        return _contexts.zstd_writer.compress(view)
    if codec == SNAPPY:
        return _snappy_write(view)
    if codec == GZIP:
        return igzip_lib.compress(view, GZIP_LEVEL, igzip_lib.COMP_GZIP)
    if codec == NONE:
        return bytes(view)
    raise CodecError(f"unknown codec {codec}")


def _too_large(codec: str, size_max: int) -> CodecError:
    return CodecError(f"{codec}: holds more than {size_max} bytes")


def _truncated(codec: str) -> CodecError:
    return CodecError(f"{codec}: ends too early")


def _gzip_read(view: memoryview, size_max: int) -> bytes:
    """One member, whose last four bytes give its size: the output is that long or the member is bad."""
    if len(view) < GZIP_BYTES_MIN:
        raise _truncated("gzip")
    size = int.from_bytes(view[-4:], "little")
    if size > len(view) * GZIP_RATIO_MAX:
        raise CodecError(f"gzip: {len(view)} bytes cannot hold the {size} they end with")
    if size > size_max:
        raise _too_large("gzip", size_max)
    member = igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_GZIP)
    try:
        out = member.decompress(view, size)
    except igzip_lib.IsalError as error:  # type: ignore[misc]  # the stub takes the class for an instance
        raise CodecError(f"gzip: {error}") from error
    if not member.eof:
        raise CodecError("gzip: ends too early, or holds more than its size")
    if member.unused_data:
        raise CodecError(f"gzip: {len(member.unused_data)} bytes after the member")
    return out


def _snappy_read(view: memoryview, size_max: int) -> bytearray:
    """Xerial's stream, or one raw block if it has no such header."""
    blocks = _xerial_blocks(view) if view[:8] == XERIAL_MAGIC else [view]
    sizes = [_snappy_size(block) for block in blocks]
    size_all = sum(sizes)
    if size_all > size_max:
        raise _too_large("snappy", size_max)
    out = bytearray(size_all)
    position = 0
    with memoryview(out) as room:
        for block, size in zip(blocks, sizes, strict=True):
            try:
                snappy.decompress_raw_into(block, room[position : position + size])
            except DecompressionError as error:
                raise CodecError(str(error)) from error
            position += size
    return out


def _snappy_size(block: memoryview) -> int:
    """The size in a raw block's header, once the block is long enough to hold that much."""
    try:
        size = snappy.decompress_raw_len(block)
    except DecompressionError as error:
        raise CodecError(str(error)) from error
    if size > len(block) * SNAPPY_RATIO_MAX:
        raise CodecError(f"snappy: {len(block)} bytes cannot hold the {size} they begin with")
    return size


def _xerial_blocks(view: memoryview) -> list[memoryview]:
    """The raw blocks; none for a header alone, which is what an empty stream is."""
    if len(view) < len(XERIAL_HEADER):
        raise _truncated("snappy")
    if view[:16] != XERIAL_HEADER:
        raise CodecError(f"snappy: unknown stream version {view[8:16].hex()}")
    blocks = []
    position = len(XERIAL_HEADER)
    while position < len(view):
        start = position + 4
        if start > len(view):
            raise _truncated("snappy")
        position = start + int.from_bytes(view[position:start], "big")
        if position > len(view):
            raise _truncated("snappy")
        blocks.append(view[start:position])
    return blocks


def _snappy_write(view: memoryview) -> bytes:
    parts: list[bytes | memoryview] = [XERIAL_HEADER]
    for start in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = memoryview(snappy.compress_raw(view[start : start + XERIAL_BLOCK_BYTES]))
        parts += len(block).to_bytes(4, "big"), block
    return b"".join(parts)


def _lz4_read(view: memoryview, size_max: int) -> bytes | bytearray:
    """One frame, a block's room at a time; the library checks the checksums and the content size it may carry."""
    block_bytes = LZ4_BLOCK_BYTES[4] if view[:7] == LZ4_KAFKA_HEADER else _lz4_block_bytes(view)
    room = min(block_bytes, len(view) * LZ4_RATIO_MAX, size_max + 1)
    # A fresh context costs 0.3 us, and an error leaves nothing behind in it.
    context = lz4.frame.create_decompression_context()
    out: bytes | bytearray
    out, position, ended = _lz4_step(context, view, room)
    while not ended:
        if len(out) > size_max:
            raise _too_large("lz4", size_max)
        part, consumed, ended = _lz4_step(context, view[position:], room)
        if not (ended or consumed or part):
            raise _truncated("lz4")
        position += consumed
        out = _joined(out, part)
    if len(out) > size_max:
        raise _too_large("lz4", size_max)
    if position < len(view):
        raise CodecError(f"lz4: {len(view) - position} bytes after the frame")
    return out


def _lz4_block_bytes(view: memoryview) -> int:
    """The largest block of a frame; raises CodecError for the frames that Kafka's reader refuses."""
    if len(view) < len(LZ4_KAFKA_HEADER):
        raise _truncated("lz4")
    if view[:4] != LZ4_MAGIC:
        raise CodecError(f"lz4: no frame begins with {view[:4].hex()}")
    flags, block_code = view[4], view[5] >> 4
    if not flags & 0x20:
        raise CodecError("lz4: linked blocks, which Kafka does not read")
    if flags & 0xC3 != 0x40:
        raise CodecError(f"lz4: frame flags {flags:#04x}, which Kafka does not read")
    if block_code not in LZ4_BLOCK_BYTES:
        raise CodecError(f"lz4: unknown block size code {block_code}")
    return LZ4_BLOCK_BYTES[block_code]


def _lz4_step(context: object, view: memoryview, room: int) -> tuple[bytes, int, bool]:
    try:
        step: tuple[bytes, int, bool] = lz4.frame.decompress_chunk(context, view, max_length=room)
    except RuntimeError as error:
        raise CodecError(f"lz4: {error}") from error
    return step


def _joined(out: bytes | bytearray, part: bytes | bytearray) -> bytes | bytearray:
    """`out` and `part`; the usual single part is not copied, and several are copied once, not once per part."""
    if not out:
        return part
    if not isinstance(out, bytearray):
        out = bytearray(out)
    out += part
    return out


class _ZstdFrame(NamedTuple):
    """Where a frame's parts are, from its headers alone; `size` is None if the frame does not give it."""

    start: int
    block_ends: list[int]
    end: int
    size: int | None
    size_bound: int
    window_log: int


def _zstd_read(view: memoryview, size_max: int) -> bytes | bytearray:
    """One or more frames. The block headers bound the output before anything is decompressed or allocated."""
    if not view:
        raise _truncated("zstd")
    if size_max >= ZSTD_BLOCK_BYTES_MAX and _zstd_is_usual(view):
        return _zstd_at_once(view, ZSTD_BLOCK_BYTES_MAX)
    out: bytes | bytearray = b""
    position = 0
    while position < len(view):
        if view[position + 1 : position + 4] == ZSTD_SKIPPABLE_TAIL and view[position] & 0xF0 == 0x50:
            position = _zstd_skippable_end(view, position)
            continue
        frame = _zstd_frame(view, position)
        out = _joined(out, _zstd_content(view, frame, len(out), size_max))
        position = frame.end
    return out


def _zstd_is_usual(view: memoryview) -> bool:
    """Whether the general way would find one frame of one block with nothing optional; at a quarter of its cost."""
    if len(view) < 9 or view[:5] != ZSTD_PLAIN_FRAME or view[5] >> 3 > ZSTD_WINDOW_LOG_PLAIN - 10:
        return False
    header = int.from_bytes(view[6:9], "little")
    return header & 7 == 5 and 9 + (header >> 3) == len(view)


def _zstd_skippable_end(view: memoryview, start: int) -> int:
    end = start + 8 + int.from_bytes(view[start + 4 : start + 8], "little")
    if end > len(view):
        raise _truncated("zstd")
    return end


def _zstd_frame(view: memoryview, start: int) -> _ZstdFrame:
    """RFC 8878, 3.1.1. Raises CodecError unless the whole frame is there."""
    if len(view) - start < 9:
        raise _truncated("zstd")
    if view[start : start + 4] != ZSTD_MAGIC:
        raise CodecError(f"zstd: no frame begins with {view[start : start + 4].hex()}")
    descriptor = view[start + 4]
    single_segment = descriptor & 0x20
    position = start + 5
    window_log = 0
    window = 0
    if not single_segment:
        window_log = 10 + (view[position] >> 3)
        window = (1 << window_log) + (1 << window_log >> 3) * (view[position] & 7)
        position += 1
    position += (0, 1, 2, 4)[descriptor & 3]
    size_width = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
    size = None
    if size_width:
        size = int.from_bytes(view[position : position + size_width], "little") + (256 if size_width == 2 else 0)
        position += size_width
    if single_segment and size is not None:
        window = size
    if window > ZSTD_WINDOW_BYTES_MAX:
        raise CodecError(f"zstd: a window of {window} bytes, which Kafka does not read")
    block_ends, size_bound = _zstd_blocks(view, position, min(window, ZSTD_BLOCK_BYTES_MAX))
    end = block_ends[-1] + (4 if descriptor & 4 else 0)
    if end > len(view):
        raise _truncated("zstd")
    return _ZstdFrame(start, block_ends, end, size, size_bound, window_log)


def _zstd_blocks(view: memoryview, position: int, block_bytes_max: int) -> tuple[list[int], int]:
    """Where each block ends, and the most that all of them can hold."""
    ends = []
    size_bound = 0
    last = 0
    while not last:
        header = int.from_bytes(view[position : position + 3], "little")
        last, kind, size = header & 1, header >> 1 & 3, header >> 3
        if kind == 3:
            raise CodecError("zstd: a block of the reserved kind")
        size_bound += block_bytes_max if kind == 2 else min(size, block_bytes_max)
        position += 3 + (1 if kind == 1 else size)
        if position > len(view):
            raise _truncated("zstd")
        ends.append(position)
    return ends, size_bound


def _zstd_content(view: memoryview, frame: _ZstdFrame, taken: int, size_max: int) -> bytes | bytearray:
    """The content of one frame, where `taken` bytes of `size_max` are those of the frames before it."""
    room = frame.size_bound if frame.size is None else frame.size
    if room > frame.size_bound:
        raise CodecError(f"zstd: blocks of at most {frame.size_bound} bytes cannot hold the {room} declared")
    source: memoryview | bytearray = view[frame.start : frame.end]
    if frame.window_log > ZSTD_WINDOW_LOG_PLAIN:
        source = _zstd_window_cut(bytearray(source), min(frame.size_bound, size_max + ZSTD_BLOCK_BYTES_MAX))
    plain = room <= max(ZSTD_ROOM_BYTES_PLAIN, ZSTD_ROOM_RATIO_PLAIN * len(source))
    # Without room the library answers, or refuses, without looking at the blocks.
    if room and plain and taken + room <= size_max:
        return _zstd_at_once(source, room)
    return _zstd_by_block(source, [end - frame.start for end in frame.block_ends], taken, size_max)


def _zstd_at_once(frame: memoryview | bytearray, room: int) -> bytes:
    try:
        return _contexts.zstd_reader.decompress(frame, max_output_size=room)
    except zstandard.ZstdError as error:
        raise CodecError(f"zstd: {error}") from error


def _zstd_window_cut(frame: bytearray, reach: int) -> bytearray:
    """The frame with no wider window than `reach` needs: level 20 and above ask for up to 128 MiB.

    No match reaches back further than the output is long, so the content is the same.
    """
    window_log = max(ZSTD_WINDOW_LOG_PLAIN, (reach - 1).bit_length())
    if window_log - 10 < frame[5] >> 3:
        frame[5] = (window_log - 10) << 3
    return frame


def _zstd_by_block(frame: memoryview | bytearray, block_ends: list[int], taken: int, size_max: int) -> bytearray:
    """Slower, but never holds more than a block beyond `size_max`."""
    reader = _contexts.zstd_reader.decompressobj()
    out = bytearray()
    start = 0
    for end in [*block_ends[:-1], len(frame)]:
        try:
            out += reader.decompress(frame[start:end])
        except zstandard.ZstdError as error:
            raise CodecError(f"zstd: {error}") from error
        if taken + len(out) > size_max:
            raise _too_large("zstd", size_max)
        start = end
    if not reader.eof:
        raise _truncated("zstd")
    return out
