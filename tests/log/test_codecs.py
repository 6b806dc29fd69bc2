"""Codecs against the libraries' own writers and readers, hostile payloads, and a memory meter."""

from __future__ import annotations

import gzip
import os
import random
import subprocess
import sys
import threading
import tracemalloc
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import lz4.frame
import numpy as np
import pytest
import zstandard
from cramjam import snappy
from hypothesis import given
from hypothesis import strategies as st

from headstone.log.codecs import GZIP, LZ4, NAMES, NONE, RATIO_MAX, SNAPPY, ZSTD, CodecError, compress, decompress

CODECS = range(5)
COMPRESSED = (GZIP, SNAPPY, LZ4, ZSTD)
SIZE_MAX = 32 << 20
SLACK_BYTES = 1 << 20
XERIAL = b"\x82SNAPPY\0" + b"\0\0\0\1" * 2
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
ZSTD_LAST_EMPTY = b"\x01\0\0"
CHANCE = random.Random(20_241_025)
NOISE = CHANCE.randbytes(200_000)
TEXT = b"".join(b'{"customer":%d,"status":"shipped"}' % CHANCE.randrange(10_000) for _ in range(9_000))


def gzip_member(content: bytes, level: int = 6) -> bytes:
    return gzip.compress(content, level, mtime=0)


def xerial(*blocks: bytes) -> bytes:
    raw = [bytes(snappy.compress_raw(block)) for block in blocks]
    return XERIAL + b"".join(len(block).to_bytes(4, "big") + block for block in raw)


def lz4_frame(content: bytes, **options: object) -> bytes:
    frame: bytes = lz4.frame.compress(content, **{"block_linked": False, **options})
    return frame


def lz4_blocks(content: bytes, code: int) -> bytes:
    """The one-shot writer takes a smaller code where the content is small; this one does as it is told."""
    writer = lz4.frame.LZ4FrameCompressor(block_size=code, block_linked=False)
    return bytes(writer.begin() + writer.compress(content) + writer.flush())


def lz4_flush_often(content: bytes) -> bytes:
    writer = lz4.frame.LZ4FrameCompressor(block_linked=False, auto_flush=True)
    parts = [writer.begin()] + [writer.compress(content[at : at + 999]) for at in range(0, len(content), 999)]
    return b"".join([*parts, writer.flush()])


def zstd_frame(content: bytes, *, write_checksum: bool = False, write_content_size: bool = True) -> bytes:
    writer = zstandard.ZstdCompressor(write_checksum=write_checksum, write_content_size=write_content_size)
    return writer.compress(content)


def zstd_stream(content: bytes, level: int = 3) -> bytes:
    """As Kafka writes it: the size is not known when the header is."""
    writer = zstandard.ZstdCompressor(level=level).compressobj()
    return writer.compress(content) + writer.flush()


def zstd_flush_often(content: bytes) -> bytes:
    writer = zstandard.ZstdCompressor().compressobj()
    parts: list[bytes] = []
    for at in range(0, len(content), 999):
        parts += writer.compress(content[at : at + 999]), writer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    return b"".join([*parts, writer.flush()])


def zstd_skippable(content: bytes) -> bytes:
    return b"\x5a\x2a\x4d\x18" + len(content).to_bytes(4, "little") + content


def gzip_named(content: bytes) -> bytes:
    """A member with every optional field of RFC 1952: extra, name, comment, header CRC."""
    header = b"\x1f\x8b\x08\x1e" + b"\1\2\3\4" + b"\0\3" + b"\3\0abc" + b"name\0" + b"comment\0"
    return header + (zlib.crc32(header) & 0xFFFF).to_bytes(2, "little") + zlib.compress(content, wbits=31)[10:]


FOREIGN: list[tuple[int, str, Callable[[bytes], bytes]]] = [
    (GZIP, "python", gzip_member),
    (GZIP, "level 0", lambda content: gzip_member(content, 0)),
    (GZIP, "level 9", lambda content: gzip_member(content, 9)),
    (GZIP, "every optional field", gzip_named),
    (SNAPPY, "raw", lambda content: bytes(snappy.compress_raw(content))),
    (SNAPPY, "xerial, one block", xerial),
    (
        SNAPPY,
        "xerial, uneven blocks",
        lambda content: xerial(content[:7], content[7:7], content[7:5000], content[5000:]),
    ),
    (LZ4, "content size", lambda content: lz4_frame(content, store_size=True)),
    (LZ4, "content checksum", lambda content: lz4_frame(content, content_checksum=True)),
    (LZ4, "block checksums", lambda content: lz4_frame(content, block_checksum=True, store_size=False)),
    (LZ4, "all fields", lambda content: lz4_frame(content, content_checksum=True, block_checksum=True)),
    *((LZ4, f"block size code {code}", partial(lz4_blocks, code=code)) for code in (4, 5, 6, 7)),
    (LZ4, "level 12", lambda content: lz4_frame(content, compression_level=12)),
    (LZ4, "small blocks", lz4_flush_often),
    (ZSTD, "content size", zstd_frame),
    (ZSTD, "content size and checksum", lambda content: zstd_frame(content, write_checksum=True)),
    (ZSTD, "no size, checksum", lambda content: zstd_frame(content, write_content_size=False, write_checksum=True)),
    (ZSTD, "stream", zstd_stream),
    (ZSTD, "stream of level 22", lambda content: zstd_stream(content, level=22)),
    (ZSTD, "small blocks", zstd_flush_often),
    (
        ZSTD,
        "frames",
        lambda content: zstd_stream(content[:99]) + zstd_frame(content[99:200]) + zstd_stream(content[200:]),
    ),
    (ZSTD, "empty frames", lambda content: zstd_stream(b"") + zstd_frame(b"") + zstd_frame(content) + zstd_frame(b"")),
    (ZSTD, "skippable", lambda content: zstd_skippable(b"x" * 9) + zstd_stream(content) + zstd_skippable(b"")),
]

every_foreign = pytest.mark.parametrize(
    ("codec", "write"),
    [pytest.param(codec, write, id=f"{NAMES[codec]}: {name}") for codec, name, write in FOREIGN],
)
every_compressed = pytest.mark.parametrize("codec", COMPRESSED, ids=[NAMES[codec] for codec in COMPRESSED])


def peak_bytes(call: Callable[[], object]) -> int:
    """What `call` allocates through Python's allocators at its highest; C libraries' own memory is not in it."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def refusal(codec: int, payload: bytes, size_max: int = SIZE_MAX) -> str:
    with pytest.raises(CodecError) as caught:
        decompress(codec, payload, size_max)
    return caught.value.reason


@given(
    codec=st.sampled_from(CODECS),
    content=st.one_of(
        st.binary(max_size=300),
        st.builds(lambda piece, times: piece * times, st.binary(max_size=300), st.integers(0, 2_000)),
        st.builds(lambda at, size: NOISE[at : at + size], st.integers(0, 9_999), st.integers(0, 190_000)),
    ),
)
def test_what_is_written_is_read(codec: int, content: bytes) -> None:
    assert bytes(decompress(codec, compress(codec, content), len(content))) == content


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)])
@pytest.mark.parametrize("codec", CODECS)
def test_any_contiguous_bytes_are_taken(codec: int, kind: Callable[[bytes], bytes]) -> None:
    assert bytes(decompress(codec, kind(compress(codec, kind(TEXT))), SIZE_MAX)) == TEXT


def test_no_codec_gives_the_payload_itself() -> None:
    payload = bytearray(b"abc")
    view = decompress(NONE, payload, 3)
    payload[0] = ord("x")
    assert bytes(view) == b"xbc"


@every_foreign
@pytest.mark.parametrize("content", [b"", b"k", TEXT[:5_000], TEXT, NOISE, bytes(1_000_000)], ids=len)
def test_other_writers_are_read_up_to_the_exact_limit(
    codec: int, write: Callable[[bytes], bytes], content: bytes
) -> None:
    payload = write(content)
    assert bytes(decompress(codec, payload, SIZE_MAX)) == content
    assert bytes(decompress(codec, payload, len(content))) == content
    if content:
        assert f"more than {len(content) - 1} bytes" in refusal(codec, payload, len(content) - 1)


def read_xerial(payload: bytes) -> bytes:
    assert payload[:16] == XERIAL
    content, at = [], 16
    while at < len(payload):
        size = int.from_bytes(payload[at : at + 4], "big")
        content.append(bytes(snappy.decompress_raw(payload[at + 4 : at + 4 + size])))
        at += 4 + size
    assert all(len(block) == 32_768 for block in content[:-1])
    return b"".join(content)


OTHER_READERS: dict[int, Callable[[bytes], bytes]] = {
    GZIP: gzip.decompress,
    SNAPPY: read_xerial,
    LZ4: lz4.frame.decompress,
    ZSTD: lambda payload: zstandard.ZstdDecompressor().decompressobj().decompress(payload),
}


@every_compressed
@pytest.mark.parametrize("content", [b"", b"k", TEXT, NOISE, bytes(32_768), bytes(65_536)], ids=len)
def test_other_readers_read_what_is_written(codec: int, content: bytes) -> None:
    assert OTHER_READERS[codec](compress(codec, content)) == content


def test_framing_is_kafkas() -> None:
    assert compress(GZIP, TEXT)[:8] == b"\x1f\x8b\x08\0" + bytes(4)
    assert compress(SNAPPY, b"") == XERIAL
    assert compress(LZ4, NOISE)[:11] == bytes.fromhex("04224d18 604082") + (1 << 31 | 65_536).to_bytes(4, "little")
    assert compress(LZ4, TEXT)[-4:] == bytes(4)
    zstd = zstandard.get_frame_parameters(compress(ZSTD, TEXT))
    assert (zstd.content_size, zstd.has_checksum, zstd.dict_id) == (zstandard.CONTENTSIZE_UNKNOWN, False, 0)


def flip(payload: bytes, at: int, mask: int = 0xFF) -> bytes:
    flipped = bytearray(payload)
    flipped[at] ^= mask
    return bytes(flipped)


def lz4_declared(size: int) -> bytes:
    """A frame whose header checksum is right and whose content size is `size`, holding nothing."""
    context = lz4.frame.create_compression_context()
    header = lz4.frame.compress_begin(context, source_size=size, block_linked=False)
    return bytes(header) + bytes(4)


MALFORMED = [
    (GZIP, "gzip:", gzip_member(b"abc") + b"\0"),
    (GZIP, "ends too early", b""),
    (GZIP, "ends too early", gzip_member(TEXT)[:17]),
    (GZIP, "cannot hold", gzip_member(TEXT)[:-1] + b"\xff"),
    (GZIP, "4 bytes after", gzip_member(b"abc") + b"\3\0\0\0"),
    (GZIP, "bytes after", gzip_member(b"abc") + gzip_member(b"abc")),
    (GZIP, "ends too early", gzip_member(bytes(99))[:-4] + (98).to_bytes(4, "little")),
    (GZIP, "checksum", gzip_member(bytes(99))[:-4] + (100).to_bytes(4, "little")),
    (GZIP, "checksum", flip(gzip_member(TEXT), -8)),
    (GZIP, "gzip:", flip(gzip_member(TEXT), 0)),
    (GZIP, "gzip:", zlib.compress(TEXT)),
    (SNAPPY, "empty", b""),
    (SNAPPY, "snappy:", b"\xff\xff"),
    (SNAPPY, "snappy:", b"\xff\xff\xff\xff\x7f" + bytes(99)),
    (SNAPPY, "cannot hold", b"\xff\xff\xff\xff\x0f" + bytes(99)),
    (SNAPPY, "snappy:", bytes(snappy.compress_raw(TEXT))[:-1]),
    (SNAPPY, "snappy:", bytes(snappy.compress_raw(TEXT)) + b"\0"),
    (SNAPPY, "snappy:", b"\x04\x08abc"),
    (SNAPPY, "snappy:", b"\x08\x08abc\x01\x09"),
    (SNAPPY, "ends too early", XERIAL[:8]),
    (SNAPPY, "ends too early", XERIAL[:15]),
    (SNAPPY, "unknown stream version", flip(XERIAL, 11)),
    (SNAPPY, "ends too early", xerial(TEXT)[:-1]),
    (SNAPPY, "ends too early", xerial(TEXT) + b"\0\0\0"),
    (SNAPPY, "ends too early", XERIAL + b"\xff\xff\xff\xff" + bytes(99)),
    (SNAPPY, "empty", xerial(TEXT) + bytes(4)),
    (SNAPPY, "cannot hold", XERIAL + b"\0\0\0\x06" + b"\xff\xff\xff\xff\x0f\0"),
    (LZ4, "ends too early", b""),
    (LZ4, "ends too early", lz4_frame(TEXT, store_size=False)[:7]),
    (LZ4, "ends too early", lz4_frame(TEXT)[:-1]),
    (LZ4, "ends too early", lz4_frame(TEXT)[:-4]),
    (LZ4, "ends too early", lz4_frame(TEXT, content_checksum=True)[:-4]),
    (LZ4, "1 bytes after", lz4_frame(TEXT) + b"\0"),
    (LZ4, "bytes after", lz4_frame(TEXT) + lz4_frame(TEXT)),
    (LZ4, "no frame begins", b"\x50\x2a\x4d\x18\0\0\0\0" + lz4_frame(TEXT)),
    (LZ4, "linked blocks", lz4_frame(TEXT, block_linked=True)),
    (LZ4, "frame flags 0x61", flip(lz4_frame(TEXT, store_size=False), 4, 0x01)),
    (LZ4, "frame flags 0xa0", flip(lz4_frame(TEXT, store_size=False), 4, 0xC0)),
    (LZ4, "block size code 3", flip(lz4_frame(TEXT, store_size=False), 5, 0x70)),
    (LZ4, "lz4:", flip(lz4_frame(TEXT, store_size=False), 6)),
    (LZ4, "lz4:", lz4_declared(1)),
    (LZ4, "lz4:", lz4_declared(1 << 60)),
    (LZ4, "lz4:", flip(lz4_frame(TEXT, content_checksum=True), -1)),
    (LZ4, "lz4:", flip(lz4_frame(NOISE, block_checksum=True, store_size=False), 99)),
    (LZ4, "lz4:", bytes.fromhex("04224d18604082") + (65_537 | 1 << 31).to_bytes(4, "little") + bytes(65_541)),
    (ZSTD, "ends too early", b""),
    (ZSTD, "ends too early", ZSTD_MAGIC + bytes(4)),
    (ZSTD, "ends too early", zstd_stream(TEXT)[:-1]),
    (ZSTD, "ends too early", zstd_stream(TEXT[:99])[:-1]),
    (ZSTD, "ends too early", zstd_frame(TEXT, write_checksum=True)[:-1]),
    (ZSTD, "zstd:", flip(zstd_frame(TEXT, write_checksum=True), -1)),
    (ZSTD, "ends too early", zstd_stream(TEXT) + ZSTD_MAGIC),
    (ZSTD, "no frame begins", zstd_stream(TEXT) + bytes(9)),
    (ZSTD, "no frame begins", bytes(9)),
    (ZSTD, "ends too early", zstd_skippable(b"abc")[:-1]),
    (ZSTD, "a window of", ZSTD_MAGIC + bytes([0, (28 - 10) << 3]) + ZSTD_LAST_EMPTY),
    (ZSTD, "reserved kind", ZSTD_MAGIC + b"\0\x58" + b"\x07\0\0"),
    (ZSTD, "zstd:", ZSTD_MAGIC + b"\x08\x58" + ZSTD_LAST_EMPTY),
    (ZSTD, "zstd:", ZSTD_MAGIC + b"\x01\x58\x07" + b"\x01\0\0"),
    (ZSTD, "zstd:", ZSTD_MAGIC + b"\x20\0" + (5 << 3 | 1).to_bytes(3, "little") + b"hello"),
    (ZSTD, "zstd:", ZSTD_MAGIC + b"\x20\4" + (5 << 3 | 1).to_bytes(3, "little") + b"hello"),
    (ZSTD, "cannot hold", ZSTD_MAGIC + b"\x20\6" + (5 << 3 | 1).to_bytes(3, "little") + b"hello"),
    (ZSTD, "cannot hold", ZSTD_MAGIC + b"\xc0\x58" + (1 << 60).to_bytes(8, "little") + ZSTD_LAST_EMPTY),
]


@pytest.mark.parametrize(
    ("codec", "reason", "payload"),
    MALFORMED,
    ids=[f"{NAMES[codec]} {number}: {reason}" for number, (codec, reason, _) in enumerate(MALFORMED)],
)
def test_malformed_payload_is_refused(codec: int, reason: str, payload: bytes) -> None:
    assert reason in refusal(codec, payload)


@pytest.mark.parametrize("codec", [-1, 5, 7])
def test_unknown_codec_is_refused(codec: int) -> None:
    assert refusal(codec, b"abc") == f"unknown codec {codec}"
    with pytest.raises(CodecError, match="unknown codec"):
        compress(codec, b"abc")


@every_foreign
def test_every_truncation_of_other_writers_is_refused(codec: int, write: Callable[[bytes], bytes]) -> None:
    content = TEXT[:3_000]
    payload = write(content)
    for end in range(len(payload)):
        try:
            read = bytes(decompress(codec, payload[:end], SIZE_MAX))
        except CodecError:
            continue
        # Cut between frames or blocks, a stream is whole again; only the batch's CRC knows.
        assert codec in (SNAPPY, ZSTD)
        assert content.startswith(read)


DAMAGED: list[tuple[int, bool, Callable[[bytes], bytes]]] = [
    (GZIP, True, gzip_member),
    (GZIP, True, gzip_named),
    (SNAPPY, False, lambda content: compress(SNAPPY, content)),
    (SNAPPY, False, lambda content: bytes(snappy.compress_raw(content))),
    (LZ4, False, lambda content: compress(LZ4, content)),
    (LZ4, True, lambda content: lz4_frame(content, content_checksum=True, block_checksum=True)),
    (ZSTD, False, zstd_stream),
    (ZSTD, True, lambda content: zstd_frame(content, write_checksum=True)),
    (ZSTD, False, zstd_flush_often),
]


@pytest.mark.parametrize(
    ("codec", "checksummed", "write"), DAMAGED, ids=[f"{NAMES[codec]} {at}" for at, (codec, _, _) in enumerate(DAMAGED)]
)
def test_damage_is_refused_or_harmless(codec: int, checksummed: bool, write: Callable[[bytes], bytes]) -> None:
    """Two thousand damages: flipped bits, cuts, bytes put in. Without a checksum wrong content is the batch CRC's."""
    chance = random.Random(codec)
    for _ in range(2_000):
        content = TEXT[: chance.choice((40, 700, 70_000))]
        damaged = bytearray(write(content) if len(content) < 1_000 else LARGE[write])
        for _ in range(chance.choice((1, 1, 1, 8))):
            # Half of the damage goes where the headers are.
            at = chance.randrange(min(len(damaged), chance.choice((24, len(damaged)))))
            damaged[at] ^= 1 << chance.randrange(8)
        if chance.random() < 0.2:
            del damaged[chance.randrange(len(damaged)) :]
        elif chance.random() < 0.2:
            damaged[at:at] = chance.randbytes(3)
        try:
            read = bytes(decompress(codec, damaged, 100_000))
        except CodecError:
            continue
        assert len(read) <= 100_000
        assert read == content or not checksummed


LARGE = {write: write(TEXT[:70_000]) for _, _, write in DAMAGED}

ZEROS_BYTES = 100_000_000
RLE_BLOCK = ((128 << 10) << 3 | 2).to_bytes(3, "little") + b"\0"


def gzip_lying(zeros: int, claimed: int) -> bytes:
    return gzip_member(bytes(zeros))[:-4] + claimed.to_bytes(4, "little")


def zstd_rle(descriptor: bytes, blocks: int) -> bytes:
    return ZSTD_MAGIC + descriptor + RLE_BLOCK * blocks + ZSTD_LAST_EMPTY


BOMBS = {
    "gzip": (GZIP, gzip_member(bytes(ZEROS_BYTES))),
    "gzip that claims less": (GZIP, gzip_lying(ZEROS_BYTES, 1_000_000)),
    "snappy": (SNAPPY, bytes(snappy.compress_raw(bytes(ZEROS_BYTES)))),
    "xerial": (SNAPPY, xerial(*[bytes(1 << 20)] * 99)),
    "lz4": (LZ4, lz4_frame(bytes(ZEROS_BYTES), store_size=False)),
    "lz4 with size": (LZ4, lz4_frame(bytes(ZEROS_BYTES), block_size=7)),
    "zstd": (ZSTD, zstd_stream(bytes(ZEROS_BYTES))),
    "zstd with size": (ZSTD, zstd_frame(bytes(ZEROS_BYTES))),
    "zstd of widest window": (ZSTD, zstd_rle(bytes([0, (27 - 10) << 3]), 800)),
    "zstd frames": (ZSTD, zstd_stream(bytes(1_000_000)) * 99),
}


@pytest.mark.parametrize(("codec", "payload"), BOMBS.values(), ids=BOMBS)
@pytest.mark.parametrize("size_max", [0, 100_000, 4_000_000])
def test_bomb_is_refused_within_the_limit(codec: int, payload: bytes, size_max: int) -> None:
    # A bytearray grows by an eighth at a time, and by copying.
    assert peak_bytes(lambda: refusal(codec, payload, size_max)) < 2.2 * size_max + SLACK_BYTES


DENSEST = {
    "gzip": (GZIP, gzip_member(bytes(ZEROS_BYTES), 9)),
    "snappy": (SNAPPY, bytes(snappy.compress_raw(bytes(ZEROS_BYTES)))),
    "lz4": (LZ4, lz4_frame(bytes(ZEROS_BYTES), block_size=7, compression_level=12, store_size=False)),
    "zstd": (ZSTD, zstd_rle(bytes([0, (27 - 10) << 3]), 800)),
}


@pytest.mark.parametrize(("codec", "payload"), DENSEST.values(), ids=DENSEST)
def test_no_payload_holds_more_than_its_codec_allows_and_some_nearly_do(codec: int, payload: bytes) -> None:
    ratio = len(decompress(codec, payload, 1 << 40)) / len(payload)
    assert 0.95 * RATIO_MAX[codec] < ratio <= RATIO_MAX[codec]


SMALL = [(codec, write(b"key and value")) for codec, _, write in FOREIGN] + [
    (GZIP, gzip_member(b"k")[:-4] + (20_000).to_bytes(4, "little")),
    (SNAPPY, b"\x80\x80\x80\x80\x08" + bytes(40)),
    (LZ4, lz4_declared(1 << 40)),
    (ZSTD, ZSTD_MAGIC + b"\xa0" + (1 << 30).to_bytes(4, "little") + ZSTD_LAST_EMPTY),
    (ZSTD, ZSTD_MAGIC + b"\0\x88" + b"\x04\0\0" * 9_000 + ZSTD_LAST_EMPTY),
]


@pytest.mark.parametrize(
    ("codec", "payload"), SMALL, ids=[f"{NAMES[codec]} {at}" for at, (codec, _) in enumerate(SMALL)]
)
def test_small_payload_takes_little_whatever_it_claims(codec: int, payload: bytes) -> None:
    def read() -> None:
        try:
            decompress(codec, payload, 1 << 40)
        except CodecError:
            return

    assert peak_bytes(read) < SLACK_BYTES


LITTLE_MEMORY = """
import resource, sys
from headstone.log.codecs import CodecError, compress, decompress
codec, payload = int(sys.argv[1]), open(sys.argv[2], "rb").read()
decompress(codec, compress(codec, bytes(200_000)), 1 << 20)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (48 << 20),) * 2)
try:
    print(len(decompress(codec, payload, 4_000_000)))
except CodecError as error:
    print(error)
"""


def read_in_little_memory(codec: int, payload: bytes, directory: Path) -> str:
    """The size read, or the refusal; the limit on the address space counts the C libraries' memory too."""
    file = directory / "payload"
    file.write_bytes(payload)
    run = subprocess.run(
        [sys.executable, "-c", LITTLE_MEMORY, str(codec), str(file)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (run.returncode, run.stderr) == (0, "")
    return run.stdout


reads_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@reads_proc
@pytest.mark.parametrize(("codec", "payload"), BOMBS.values(), ids=BOMBS)
def test_bomb_fits_a_process_of_little_memory(codec: int, payload: bytes, tmp_path: Path) -> None:
    assert "more than" in read_in_little_memory(codec, payload, tmp_path)


def zstd_window(frame: bytes, window_log: int) -> bytes:
    """The same stream asking for another window."""
    return frame[:5] + bytes([(window_log - 10) << 3]) + frame[6:]


@reads_proc
@pytest.mark.parametrize("size", [5_000, 300_000])
def test_window_of_128_mib_is_not_allocated_for_less(size: int, tmp_path: Path) -> None:
    payload = zstd_window(zstd_stream(TEXT[:size]), 27)
    assert read_in_little_memory(ZSTD, payload, tmp_path) == f"{size}\n"


def test_far_match_is_read_through_a_narrowed_window() -> None:
    content = NOISE + bytes(9 << 20) + NOISE
    writer = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(window_log=27, enable_ldm=True, write_content_size=False)
    ).compressobj()
    payload = writer.compress(content) + writer.flush()
    assert payload[5] >> 3 == 27 - 10
    assert len(payload) < 1.5 * len(NOISE)
    assert decompress(ZSTD, payload, SIZE_MAX) == content
    assert decompress(ZSTD, payload, len(content)) == content


@pytest.mark.parametrize("width", [1, 2, 3])
def test_dictionary_zero_is_none(width: int) -> None:
    identifier = bytes((0, 1, 2, 4)[width])
    frame = ZSTD_MAGIC + bytes([width]) + b"\x58" + identifier + (5 << 3 | 1).to_bytes(3, "little") + b"hello"
    assert decompress(ZSTD, frame, 5) == b"hello"


def test_threads_do_not_share_contexts() -> None:
    contents = [TEXT[at : at + 40_000] for at in range(0, 80_000, 10_000)]
    failures: list[tuple[int, int]] = []

    def work(number: int) -> None:
        for turn in range(200):
            codec = COMPRESSED[turn % 4]
            content = contents[(turn + number) % len(contents)]
            if bytes(decompress(codec, compress(codec, content), SIZE_MAX)) != content:
                failures.append((number, turn))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
