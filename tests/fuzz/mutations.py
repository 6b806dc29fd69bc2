"""Owns what the fuzz does to a log directory: one function a mutation, from files and chance to changed files.

Some leave checksums broken, as a bad disk does; others are resealed, that is, the batch length and CRC are made right
again, so that the layers behind the checksum meet the damage. Knows the format through the oracle only.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import cramjam
import lz4.frame
import zstandard

from tests.fuzz.logs import PARTITION, Files
from tests.fuzz.sizes import DECOMPRESSION_ERRORS, check_size
from tests.oracle.batches import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CRC_AT,
    HEADER_BYTES,
    LENGTH_BEFORE,
    crc32c,
    read_varint,
    sized,
    varint,
)
from tests.oracle.compression import CODECS, XERIAL_HEADER, compress, decompress, snappy_compress

Chance = random.Random
Mutation = Callable[[Files, Chance], None]

# Name, position, layout of the header fields.
FIELDS = (
    ("base offset", 0, ">q"),
    ("length", 8, ">i"),
    ("leader epoch", 12, ">i"),
    ("magic", 16, ">b"),
    ("crc", 17, ">I"),
    ("attributes", 21, ">h"),
    ("last offset delta", 23, ">i"),
    ("base timestamp", 27, ">q"),
    ("max timestamp", 35, ">q"),
    ("producer id", 43, ">q"),
    ("producer epoch", 51, ">h"),
    ("base sequence", 53, ">i"),
    ("count", 57, ">i"),
)
EDGES = (2**15 - 1, -(2**15), 2**31 - 1, -(2**31), 2**62, 2**63 - 1, -(2**63))
NUMBERS = (0, 1, -1, 2, 7, 13, 14, 49, 61, 127, 128, 255, 256, *EDGES)
BOMB_BYTES = (1 << 20, 5 << 20, 40 << 20)
BOMB_BYTES_RARE = (255 << 20, 300 << 20)
CHECKPOINTS = ("replication-offset-checkpoint", "log-start-offset-checkpoint", "cleaner-offset-checkpoint")
BEYOND_LONG = ("9223372036854775807", "9223372036854775808", "-9223372036854775809", "1" * 30)
TEXT_NUMBERS = ("0", "-1", "3", "9", "1e3", "", " ", *BEYOND_LONG)


def mutate(files: Files, chance: Chance) -> list[str]:
    """Changes files in place, once or a few times; the names of what was done."""
    times = chance.choice((1, 1, 1, 1, 1, 2, 2, 3, 5))
    done = []
    for _ in range(times):
        mutation = chance.choices(MUTATIONS, WEIGHTS)[0]
        mutation(files, chance)
        done.append(mutation.__name__)
    return done


def flip_bits(files: Files, chance: Chance) -> None:
    def change(data: bytearray) -> None:
        for _ in range(chance.choice((1, 1, 1, 2, 8))):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)

    _change_bytes(files, chance, change)


def set_bytes(files: Files, chance: Chance) -> None:
    def change(data: bytearray) -> None:
        at, size = chance.randrange(len(data)), chance.choice((1, 1, 2, 4, 30))
        data[at : at + size] = chance.choice((bytes(size), b"\xff" * size, chance.randbytes(size)))[: len(data) - at]

    _change_bytes(files, chance, change)


def truncate(files: Files, chance: Chance) -> None:
    def change(data: bytearray) -> None:
        del data[chance.randrange(len(data)) :]

    _change_bytes(files, chance, change)


def insert_bytes(files: Files, chance: Chance) -> None:
    def change(data: bytearray) -> None:
        at = chance.randint(0, len(data))
        data[at:at] = chance.choice((chance.randbytes(chance.randint(1, 40)), bytes(chance.randint(1, 100))))

    _change_bytes(files, chance, change)


def delete_bytes(files: Files, chance: Chance) -> None:
    def change(data: bytearray) -> None:
        at = chance.randrange(len(data))
        del data[at : at + chance.choice((1, 3, 20))]

    _change_bytes(files, chance, change)


def change_field(files: Files, chance: Chance) -> None:
    """A header field gets a number that is next to the old one or at an edge of its range."""

    def change(batch: bytearray) -> None:
        name, at, layout = chance.choice(FIELDS)
        (old,) = struct.unpack_from(layout, batch, at)
        new = chance.choice((*NUMBERS, old + 1, old - 1, old ^ 1 << chance.randrange(8 * struct.calcsize(layout) - 1)))
        struct.pack_into(layout, batch, at, _fitted(new, layout))
        if name not in ("length", "crc") and chance.random() < 0.8:
            _seal(batch, with_length=False)

    _change_batch(files, chance, change)


def change_attributes(files: Files, chance: Chance) -> None:
    def change(batch: bytearray) -> None:
        batch[ATTRIBUTES_AT + 1] ^= 1 << chance.randrange(7)
        _seal(batch)

    _change_batch(files, chance, change)


def change_payload(files: Files, chance: Chance) -> None:
    """Damages the bytes behind the header, compressed ones as they are."""

    def change(batch: bytearray) -> None:
        batch[HEADER_BYTES:] = _damaged(bytes(batch[HEADER_BYTES:]), chance)
        _seal(batch)

    _change_batch(files, chance, change)


def change_records(files: Files, chance: Chance) -> None:
    """Damages the decompressed records, then compresses them again."""
    _change_batch(files, chance, lambda batch: _repack(batch, _damaged(_unpacked(batch), chance)))


def change_varint(files: Files, chance: Chance) -> None:
    """Another number, an overlong form, or one that never ends, in place of one of the record's varints."""

    def change(batch: bytearray) -> None:
        records = _unpacked(batch)
        places = _varints(records)
        if not places:
            return
        start, end, number = chance.choice(places)
        new = chance.choice((
            varint(number + chance.choice((1, -1, 64))), varint(-number), varint(_fitted(chance.choice(NUMBERS), ">q")),
            _overlong(number, chance.randint(1, 10)), b"\xff" * chance.choice((4, 5, 9, 10, 11)),
            b"\xff" * 9 + b"\x7f", b"\x80" * 4 + b"\x7f",
        ))  # fmt: skip
        records = records[:start] + new + records[end:]
        if start and chance.random() < 0.7:
            records = _with_first_length(records)
        _repack(batch, records)

    _change_batch(files, chance, change)


def recompress(files: Files, chance: Chance) -> None:
    """The same records under another codec, sometimes under the wrong name."""

    def change(batch: bytearray) -> None:
        records = _unpacked(batch)
        codec = chance.randrange(len(CODECS))
        batch[ATTRIBUTES_AT + 1] = batch[ATTRIBUTES_AT + 1] & ~CODEC_MASK | codec
        _repack(batch, records)
        if chance.random() < 0.3:
            batch[ATTRIBUTES_AT + 1] ^= 1 << chance.randrange(3)
            _seal(batch)

    _change_batch(files, chance, change)


def change_count(files: Files, chance: Chance) -> None:
    def change(batch: bytearray) -> None:
        (count,) = struct.unpack_from(">i", batch, 57)
        delta = chance.choice((count - 1, 0, count, count + 5, 2**31 - 1))
        struct.pack_into(">i", batch, 57, _fitted(chance.choice((count + 1, count - 1, 0, 2**31 - 1, 10**7)), ">i"))
        if chance.random() < 0.5:
            struct.pack_into(">i", batch, 23, _fitted(delta, ">i"))
        _seal(batch)

    _change_batch(files, chance, change)


def empty_batch(files: Files, chance: Chance) -> None:
    """Header-only, as the cleaner leaves it; sometimes with a codec, which the cleaner does not leave."""

    def change(batch: bytearray) -> None:
        del batch[HEADER_BYTES:]
        struct.pack_into(">i", batch, 57, 0)
        if chance.random() < 0.7:
            batch[ATTRIBUTES_AT + 1] &= ~CODEC_MASK
        _seal(batch)

    _change_batch(files, chance, change)


def move_batches(files: Files, chance: Chance) -> None:
    """Swaps, repeats or drops whole batches, sometimes into another segment."""
    name = chance.choice(_logs(files))
    batches = _split(files[name])
    if not batches:
        return
    i = chance.randrange(len(batches))
    how = chance.choice(("swap", "repeat", "drop", "move"))
    if how == "swap":
        k = chance.randrange(len(batches))
        batches[i], batches[k] = batches[k], batches[i]
    elif how == "repeat":
        batches.insert(chance.randint(0, len(batches)), batches[i])
    else:
        taken = batches.pop(i)
        if how == "move":
            other = chance.choice(_logs(files))
            files[other] = files[other] + taken if other != name else files[other]
    files[name] = b"".join(batches)


def bomb(files: Files, chance: Chance) -> None:
    """A small payload that says it holds much, or does."""

    def change(batch: bytearray) -> None:
        codec = chance.choice(CODECS[1:])
        sizes = BOMB_BYTES_RARE if chance.random() < 0.03 and codec != "snappy" else BOMB_BYTES
        packed = chance.choice((true_bomb, true_bomb, false_bomb))(codec, chance.choice(sizes))
        batch[ATTRIBUTES_AT + 1] = batch[ATTRIBUTES_AT + 1] & ~CODEC_MASK | CODECS.index(codec)
        batch[HEADER_BYTES:] = packed
        struct.pack_into(">i", batch, 57, chance.choice((1, 1, 2, 10**6)))
        _seal(batch)

    _change_batch(files, chance, change)


@cache
def true_bomb(codec: str, size: int) -> bytes:
    """One record, whole and right, whose value is all zeros. Never held whole: the worker's memory is for what it tests."""
    head, tail = b"\0" + varint(0) + varint(0) + sized(b"a") + varint(size), varint(0)
    head = varint(len(head) + size + len(tail)) + head
    parts = _with_zeros(head, size, tail)
    if codec == "snappy":
        return snappy_compress(b"".join(parts))
    begin = b""
    writer: Any
    if codec == "gzip":
        writer = zlib.compressobj(wbits=31)
    elif codec == "lz4":
        writer = lz4.frame.LZ4FrameCompressor(block_size=lz4.frame.BLOCKSIZE_MAX64KB, block_linked=False)
        begin = writer.begin()
    else:
        writer = zstandard.ZstdCompressor(level=3).compressobj(size=len(head) + size + len(tail))
    return b"".join([begin, *map(writer.compress, parts), writer.flush()])


def _with_zeros(head: bytes, size: int, tail: bytes) -> Iterator[bytes]:
    yield head
    zeros = bytes(1 << 20)
    for at in range(0, size, len(zeros)):
        yield zeros[: size - at]
    yield tail


@cache
def false_bomb(codec: str, size: int) -> bytes:
    """A payload of a few bytes that declares `size`."""
    if codec == "gzip":
        return compress("gzip", b"x")[:-4] + size.to_bytes(4, "little")
    if codec == "snappy":
        raw = bytes(cramjam.snappy.compress_raw(b"x"))
        block = _plain_varint(size) + raw[1:]
        return XERIAL_HEADER + struct.pack(">i", len(block)) + block
    if codec == "lz4":
        frame = bytearray(lz4.frame.compress(b"x", block_linked=False, store_size=True))
        frame[6:14] = size.to_bytes(8, "little")
        return bytes(frame)
    frame = bytearray(zstandard.ZstdCompressor().compress(bytes(300)))
    return bytes(frame[:4]) + b"\xa0" + size.to_bytes(4, "little") + bytes(frame[7:])


def exchange_files(files: Files, chance: Chance) -> None:
    """Two files of the same kind change places, or one is another's copy."""
    suffix = chance.choice(("log", "log", "index", "timeindex", "txnindex", "snapshot"))
    names = [name for name in files if name.endswith("." + suffix)]
    if len(names) > 1:
        one, other = chance.sample(names, 2)
        content = files[one]
        if chance.random() < 0.5:
            files[one] = files[other]
        files[other] = content


def lose_file(files: Files, chance: Chance) -> None:
    name = chance.choice(sorted(files))
    if chance.random() < 0.5:
        del files[name]
    else:
        files[name] = b""


def rename_file(files: Files, chance: Chance) -> None:
    """A file under another offset, or with the suffix of an interrupted swap."""
    numbered = [name for name in files if name.split("/")[-1][:20].isdigit()]
    name = chance.choice(numbered)
    offset = int(name.split("/")[-1][:20])
    suffix = name.split(".", 1)[1]
    if chance.random() < 0.2:
        files[name + chance.choice((".cleaned", ".swap", ".deleted", ".tmp"))] = files[name]
        return
    new = min(max(offset + chance.choice((1, -1, 5, 2**31, 10**12)), 0), 2**63 - 1)
    files[f"{PARTITION}/{new:020d}.{suffix}"] = files.pop(name)


def change_index(files: Files, chance: Chance) -> None:
    """`.index`, `.timeindex` and `.txnindex`: damaged, one number changed, or zero-filled at the end."""
    names = [name for name in files if name.endswith("index")]
    if not names:
        return
    transactional = [name for name in names if name.endswith("txnindex")]
    name = chance.choice(transactional if transactional and chance.random() < 0.6 else names)
    data = bytearray(files[name])
    size = {"txnindex": 34, "timeindex": 12, "index": 8}[name.rsplit(".", 1)[1]]
    how = chance.choice(("damage", "number", "zeros", "repeat", "short"))
    if how == "number" and len(data) >= size and size == 34:
        at = chance.randrange(len(data) // size) * size + chance.choice((2, 10, 18, 26))
        (old,) = struct.unpack_from(">q", data, at)
        struct.pack_into(">q", data, at, _fitted(chance.choice((*NUMBERS, old + 1, old - 1)), ">q"))
    elif how == "zeros":
        data += bytes(size * chance.randint(1, 3))
    elif how == "repeat":
        data += data[-size:]
    elif how == "short":
        del data[len(data) - chance.randint(0, len(data)) :]
    else:
        data = bytearray(_damaged(bytes(data), chance))
    files[name] = bytes(data)


def change_snapshot(files: Files, chance: Chance) -> None:
    """A producer snapshot with other numbers, mostly with a right CRC."""
    names = [name for name in files if name.endswith(".snapshot")]
    if not names:
        return
    name = chance.choice(names)
    data = bytearray(files[name])
    if len(data) >= 56 and chance.random() < 0.7:
        at = 10 + chance.randrange((len(data) - 10) // 46) * 46
        place, layout = chance.choice(
            ((0, ">q"), (8, ">h"), (10, ">i"), (14, ">q"), (22, ">i"), (26, ">q"), (34, ">i"), (38, ">q"))
        )
        struct.pack_into(layout, data, at + place, _fitted(chance.choice(NUMBERS), layout))
    else:
        data = bytearray(_damaged(bytes(data), chance))
    if len(data) >= 6 and chance.random() < 0.9:
        struct.pack_into(">I", data, 2, crc32c(bytes(data[6:])))
    files[name] = bytes(data)


def change_text(files: Files, chance: Chance) -> None:
    """Checkpoints, leader epochs and partition.metadata."""
    names = [*CHECKPOINTS, f"{PARTITION}/leader-epoch-checkpoint", f"{PARTITION}/partition.metadata"]
    name = chance.choice(names)
    text = files.get(name, b"0\n1\nt 0 4\n")
    lines = text.split(b"\n")
    how = chance.choice(("number", "number", "number", "damage", "line", "words"))
    if how == "number":
        lines[-2 if len(lines) > 1 else 0] = b"t 0 " + chance.choice(TEXT_NUMBERS).encode()
    elif how == "line":
        lines.insert(chance.randint(0, len(lines)), chance.choice((b"", b"t 0 1", b"u 1 5", b"\xff\xfe", b"0")))
    elif how == "words":
        lines[chance.randrange(len(lines))] = chance.choice(
            (b"t", b"t 0 1 2", b"t x 1", b"2", b"-1", b"1_0", "٣".encode())
        )
    files[name] = _damaged(text, chance) if how == "damage" else b"\n".join(lines)


_WEIGHTED: dict[Mutation, int] = {
    flip_bits: 6, set_bytes: 3, truncate: 3, insert_bytes: 3, delete_bytes: 2, change_field: 14, change_attributes: 5,
    change_payload: 6, change_records: 10, change_varint: 14, recompress: 3, change_count: 3, empty_batch: 4,
    move_batches: 5, bomb: 1, exchange_files: 1, lose_file: 2, rename_file: 2, change_index: 4, change_snapshot: 3,
    change_text: 3,
}  # fmt: skip
MUTATIONS, WEIGHTS = list(_WEIGHTED), list(_WEIGHTED.values())


def _logs(files: Files) -> list[str]:
    return [name for name in sorted(files) if name.endswith(".log")] or [f"{PARTITION}/{0:020d}.log"]


def _change_bytes(files: Files, chance: Chance, change: Callable[[bytearray], None]) -> None:
    name = chance.choice(_logs(files)) if chance.random() < 0.85 else chance.choice(sorted(files))
    data = bytearray(files.get(name, b""))
    if data:
        change(data)
        files[name] = bytes(data)


def _change_batch(files: Files, chance: Chance, change: Callable[[bytearray], None]) -> None:
    """One batch of one log, if there is a whole one with a header."""
    name = chance.choice(_logs(files))
    batches = _split(files.get(name, b""))
    whole = [i for i, batch in enumerate(batches) if len(batch) >= HEADER_BYTES]
    if whole:
        i = chance.choice(whole)
        batch = bytearray(batches[i])
        change(batch)
        batches[i] = bytes(batch)
        files[name] = b"".join(batches)


def _split(data: bytes) -> list[bytes]:
    """Batches by their length fields, and the rest that is none."""
    batches, at = [], 0
    while len(data) - at >= HEADER_BYTES:
        (length,) = struct.unpack_from(">i", data, at + 8)
        if length < HEADER_BYTES - LENGTH_BEFORE or at + LENGTH_BEFORE + length > len(data):
            break
        batches.append(data[at : at + LENGTH_BEFORE + length])
        at += LENGTH_BEFORE + length
    return batches + ([data[at:]] if at < len(data) else [])


def _seal(batch: bytearray, *, with_length: bool = True) -> None:
    if with_length:
        struct.pack_into(">i", batch, 8, len(batch) - LENGTH_BEFORE)
    struct.pack_into(">I", batch, CRC_AT, crc32c(bytes(batch[ATTRIBUTES_AT:])))


def _unpacked(batch: bytearray) -> bytes:
    """The records, or the bytes that stand in their place if they do not decompress."""
    codec = batch[ATTRIBUTES_AT + 1] & CODEC_MASK
    packed = bytes(batch[HEADER_BYTES:])
    if codec >= len(CODECS) or len(packed) > 4_000:
        return packed
    try:
        check_size(CODECS[codec], packed)
        return decompress(CODECS[codec], packed)[:4_000]
    except DECOMPRESSION_ERRORS:
        return packed


def _repack(batch: bytearray, records: bytes) -> None:
    codec = batch[ATTRIBUTES_AT + 1] & CODEC_MASK
    batch[HEADER_BYTES:] = compress(CODECS[codec], records) if codec < len(CODECS) else records
    _seal(batch)


def _damaged(data: bytes, chance: Chance) -> bytes:
    if not data:
        return chance.randbytes(chance.randint(0, 9))
    at = chance.randrange(len(data))
    how = chance.randrange(6)
    if how == 0:
        return data[:at] + bytes((data[at] ^ 1 << chance.randrange(8),)) + data[at + 1 :]
    if how == 1:
        return data[:at] + chance.randbytes(1) + data[at + 1 :]
    if how == 2:
        return data[:at]
    if how == 3:
        return data[:at] + chance.randbytes(chance.randint(1, 8)) + data[at:]
    if how == 4:
        return data[:at] + data[at + chance.randint(1, 8) :]
    return data + data[at:]


def _varints(records: bytes) -> list[tuple[int, int, int]]:
    """(start, end, number) of the varints of the first records, as far as they can be followed."""
    found: list[tuple[int, int, int]] = []
    at = 0
    try:
        while at < len(records) and len(found) < 60:
            for field in ("size", "timestamp", "offset", "key", "value", "headers"):
                at += field == "timestamp"
                number, end = read_varint(records, at)
                found.append((at, end, number))
                at = end + (number if field in ("key", "value") and number > 0 else 0)
            for _ in range(2 * found[-1][2]):
                number, end = read_varint(records, at)
                found.append((at, end, number))
                at = end + max(number, 0)
    except ValueError:
        pass
    return found


def _with_first_length(records: bytes) -> bytes:
    """The first record's length again right for all that follows: deeper fields are reached."""
    try:
        _, end = read_varint(records, 0)
    except ValueError:
        return records
    return varint(len(records) - end) + records[end:]


def _overlong(number: int, size: int) -> bytes:
    short = varint(number)
    if size <= len(short):
        return short
    return short[:-1] + bytes((short[-1] | 0x80,)) + b"\x80" * (size - len(short) - 1) + b"\0"


def _plain_varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def _fitted(number: int, layout: str) -> int:
    """The number, cut to the field's width."""
    bits = 8 * struct.calcsize(layout)
    low = number & (1 << bits) - 1
    return low if layout[1].isupper() else (low ^ 1 << bits - 1) - (1 << bits - 1)
