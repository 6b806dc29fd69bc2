"""Owns the five codecs of a v2 batch: bytes in, bytes out. Knows nothing of batches or records."""

from __future__ import annotations

import gzip
import struct

import cramjam
import lz4.frame
import zstandard

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
XERIAL_BLOCK_BYTES = 32 * 1024


def compress(codec: str, plain: bytes) -> bytes:
    if codec == "none":
        return plain
    if codec == "gzip":
        return gzip.compress(plain, mtime=0)
    if codec == "snappy":
        return snappy_compress(plain)
    if codec == "lz4":
        return bytes(
            lz4.frame.compress(plain, block_size=lz4.frame.BLOCKSIZE_MAX64KB, block_linked=False, store_size=False)
        )
    if codec == "zstd":
        return zstandard.ZstdCompressor(level=3).compress(plain)
    raise ValueError(f"unknown codec {codec}")


def decompress(codec: str, packed: bytes) -> bytes:
    if codec == "none":
        return packed
    if codec == "gzip":
        return gzip.decompress(packed)
    if codec == "snappy":
        return snappy_decompress(packed)
    if codec == "lz4":
        return bytes(lz4.frame.decompress(packed))
    if codec == "zstd":
        return zstd_decompress(packed)
    raise ValueError(f"unknown codec {codec}")


def snappy_compress(plain: bytes) -> bytes:
    out = [XERIAL_HEADER]
    for start in range(0, len(plain), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(plain[start : start + XERIAL_BLOCK_BYTES]))
        out += [struct.pack(">i", len(block)), block]
    return b"".join(out)


def snappy_decompress(packed: bytes) -> bytes:
    if not packed.startswith(XERIAL_MAGIC):
        return bytes(cramjam.snappy.decompress_raw(packed))
    at, out = len(XERIAL_HEADER), []
    while at < len(packed):
        (size,) = struct.unpack_from(">i", packed, at)
        block = packed[at + 4 : at + 4 + size]
        if len(block) != size:
            raise ValueError("snappy block cut short")
        out.append(bytes(cramjam.snappy.decompress_raw(block)))
        at += 4 + size
    return b"".join(out)


def zstd_decompress(packed: bytes) -> bytes:
    out = []
    while packed:
        frame = zstandard.ZstdDecompressor().decompressobj()
        out.append(frame.decompress(packed))
        if not frame.eof:
            raise ValueError("zstd frame cut short")
        packed = frame.unused_data
    return b"".join(out)
