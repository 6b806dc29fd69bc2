"""How to reach object stores: endpoints, regions and credentials, as one value that travels with the work.

Settings have obstore's names (`endpoint`, `region`, `access_key_id`, ...). Those that are not set come from the environment of
the process that opens the store. Values are never shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Access:
    """Hashable, so that a process opens a store once for all callers with the same access."""

    settings: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Access:
        return cls(tuple(sorted(settings.items())))

    def __repr__(self) -> str:
        return f"Access({', '.join(name for name, _ in self.settings)})"


FROM_ENVIRONMENT = Access()
