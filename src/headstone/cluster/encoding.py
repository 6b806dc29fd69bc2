"""Kafka's two message encodings: plain sizes in old versions, compact sizes and tagged fields in flexible ones.

A reader and a writer go through a message field by field and know which encoding it has, so each field is described once. A
message that does not fit raises Unfinished, and none of it is used. Knows no request.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from typing import Self

from headstone.errors import Unfinished

MISSING = -1
VARINT_BYTES_MAX = 5
UUID_BYTES = 16


def uuid_text(bits: bytes) -> str | None:
    """URL-safe base64, as Kafka shows ids; None for the all-zero id, which means none."""
    return base64.urlsafe_b64encode(bits).decode().rstrip("=") if any(bits) else None


class AnswerReader:
    """Reads an answer field by field."""

    def __init__(self, data: bytes, *, flexible: bool = False) -> None:
        self._data = data
        self._position = 0
        self._flexible = flexible

    def take(self, layout: str) -> tuple[int, ...]:
        try:
            values = struct.unpack_from(">" + layout, self._data, self._position)
        except struct.error as error:
            raise Unfinished(f"truncated response of {len(self._data)} bytes") from error
        self._position += struct.calcsize(">" + layout)
        return values

    def one(self, layout: str) -> int:
        return self.take(layout)[0]

    def text(self) -> str | None:
        size = self.unsigned() - 1 if self._flexible else self.one("h")
        if size < 0:
            return None
        try:
            return self._bytes(size).decode()
        except UnicodeDecodeError as error:
            raise Unfinished("invalid response: a string is not UTF-8") from error

    def name(self) -> str:
        """A text that is never null."""
        return self.text() or ""

    def blob(self) -> bytes:
        """Null becomes empty."""
        size = self.unsigned() - 1 if self._flexible else self.one("i")
        return b"" if size < 0 else self._bytes(size)

    def array(self) -> range:
        """To iterate over its elements; null is empty."""
        count = self.unsigned() - 1 if self._flexible else self.one("i")
        if count > len(self._data):
            raise Unfinished(f"invalid response: {len(self._data)} bytes cannot hold {count} elements")
        return range(max(count, 0))

    def uuid(self) -> str | None:
        """As Kafka writes it; None if there is none."""
        return uuid_text(self._bytes(UUID_BYTES))

    def numbers(self) -> tuple[int, ...]:
        return self.take(f"{len(self.array())}i")

    def unsigned(self) -> int:
        number = 0
        for position in range(VARINT_BYTES_MAX):
            byte = self.one("B")
            number |= (byte & 0x7F) << 7 * position
            if byte < 0x80:
                return number
        raise Unfinished("invalid response: a size does not end")

    def tags(self) -> dict[int, bytes]:
        """The tagged fields at the end of a structure, by number; none in old versions."""
        if not self._flexible:
            return {}
        by_number = {}
        for _ in range(self.unsigned()):
            number = self.unsigned()
            by_number[number] = self._bytes(self.unsigned())
        return by_number

    def _bytes(self, size: int) -> bytes:
        if size > len(self._data) - self._position:
            raise Unfinished(f"truncated response of {len(self._data)} bytes")
        self._position += size
        return self._data[self._position - size : self._position]


class Writer:
    """Builds a request; each call appends one field."""

    def __init__(self, *, flexible: bool = False) -> None:
        self._data = bytearray()
        self._flexible = flexible

    @property
    def data(self) -> bytes:
        return bytes(self._data)

    def put(self, layout: str, *values: int) -> Self:
        self._data += struct.pack(">" + layout, *values)
        return self

    def text(self, value: str | None) -> Self:
        encoded = None if value is None else value.encode()
        self._size("h", MISSING if encoded is None else len(encoded))
        self._data += encoded or b""
        return self

    def blob(self, value: bytes) -> Self:
        self._size("i", len(value))
        self._data += value
        return self

    def array(self, count: int | None) -> Self:
        """The head of an array; its elements follow."""
        return self._size("i", MISSING if count is None else count)

    def numbers(self, values: Sequence[int] | None) -> Self:
        self.array(None if values is None else len(values))
        return self.put(f"{len(values or ())}i", *(values or ()))

    def tags(self) -> Self:
        """Writes that there are no tagged fields."""
        return self.put("B", 0) if self._flexible else self

    def _size(self, layout: str, size: int) -> Self:
        """Compact sizes count from one: zero means null."""
        return self._unsigned(size + 1) if self._flexible else self.put(layout, size)

    def _unsigned(self, number: int) -> Self:
        while number >= 0x80:
            self._data.append(number & 0x7F | 0x80)
            number >>= 7
        self._data.append(number)
        return self
