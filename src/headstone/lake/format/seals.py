"""Sealed objects: lines of JSON. The first names the lake and the object; the last is the SHA-256 of the others.

The journal consists of them, and so do the objects that say which metastore owns a store. One that was changed, truncated,
appended to or exchanged is refused, and the error names it. Callers know what the lines mean and what to do about damage.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headstone.errors import CorruptLog
from headstone.storage.stores import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A sealed object that was verified: unchanged, and under its own name."""

    header: Mapping[str, Any]
    lines: Sequence[Mapping[str, Any]]
    digest: str


def sealed(lake_id: str, path: str, lines: Sequence[Mapping[str, Any]], **header: object) -> bytes:
    """The header line, the lines themselves, and the SHA-256 of all of these."""
    written = [
        json.dumps(line, separators=(",", ":")) for line in ({"lake": lake_id, "object": path, **header}, *lines)
    ]
    body = "".join(line + "\n" for line in written).encode()
    return body + json.dumps({"sha256": hashlib.sha256(body).hexdigest()}, separators=(",", ":")).encode() + b"\n"


def digest_of(content: bytes) -> str:
    """The SHA-256 in its last line."""
    return str(json.loads(content.splitlines()[-1])["sha256"])


def unsealed(store: Store, path: str, lake_id: str | None, *, advice: str) -> Page:
    """CorruptLog if it was changed, or is another object. `lake_id` None accepts any lake."""
    body, _, last = store.read(path, 0, store.size(path)).rstrip(b"\n").rpartition(b"\n")
    body += b"\n"
    digest = hashlib.sha256(body).hexdigest()
    if last != json.dumps({"sha256": digest}, separators=(",", ":")).encode():
        raise damaged(store, path, "wrong SHA-256: it was truncated or changed", advice)
    header, *lines = (json.loads(line) for line in body.splitlines())
    if (header["lake"], header["object"]) != (lake_id or header["lake"], path):
        raise damaged(
            store, path, f"its header says {header['object']} of lake {header['lake']}: files were swapped", advice
        )
    return Page(header=header, lines=lines, digest=digest)


def damaged(store: Store, path: str, problem: str, advice: str) -> CorruptLog:
    return CorruptLog(file=f"{store.url}/{path}", position=0, offset=-1, problem=problem, advice=advice)
