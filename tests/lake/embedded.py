"""A lake that is one directory, by its verbs: what they say of it, and what is in its files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headstone.cli.main import main
from headstone.lake.lake import Lake, directory_url, open_lake
from headstone.lake.metastore.journal import seen_end
from headstone.storage.stores import Store
from tests.lake.appending import log_of
from tests.lake.scene import Said


def files(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    root: Path
    _said: Said

    @classmethod
    def make(cls, root: Path, said: Said) -> Embedded:
        """With a topic `t` of two records."""
        lake = cls(root=root, _said=said)
        assert lake.code("init") == 0
        lake.grow("N[a] N[b]")
        return lake

    def at(self, root: Path) -> Embedded:
        """The one in another directory."""
        return Embedded(root=root, _said=self._said)

    @property
    def url(self) -> str:
        return directory_url(str(self.root))

    @property
    def objects(self) -> Path:
        return self.root / "objects"

    @property
    def metastore(self) -> Path:
        return self.root / "metastore.db"

    @property
    def store(self) -> Store:
        return Store.open(f"file://{self.objects}")

    def open(self) -> Lake:
        return open_lake(self.url)

    def journal_end(self) -> int:
        """The number of the newest entry that the metastore knows."""
        with self.open() as lake:
            return seen_end(lake.metastore).number

    def code(self, verb: str, *words: str) -> int:
        return main(["lake", verb, str(self.root), *words])

    def codes(self, *verbs: str) -> list[int]:
        return [self.code(*verb.split()) for verb in verbs]

    def says(self, verb: str, *words: str, code: int = 0) -> Any:
        return self._said(verb, str(self.root), *words, code=code)

    def grow(self, text: str) -> None:
        """All of the log, which begins with what is there already."""
        assert self.code("ingest", str(log_of(self.root.parent / "logs", "t", text))) == 0

    def keys(self) -> list[str]:
        return [json.loads(line)["key"] for line in self.says("read", "t").out.splitlines()]

    def stored(self) -> dict[str, bytes]:
        return files(self.objects)

    def restore(self, contents: dict[str, bytes]) -> None:
        """What `stored` said once."""
        for path, content in contents.items():
            (self.objects / path).parent.mkdir(parents=True, exist_ok=True)
            (self.objects / path).write_bytes(content)

    def refuses(self, *verbs: str, why: str = "") -> None:
        """Each of them ends with 2, says why, and changes nothing in the store."""
        before = self.stored()
        for verb in verbs:
            name, *words = verb.split()
            assert why in self.says(name, *words, code=2).err, verb
        assert self.stored() == before
