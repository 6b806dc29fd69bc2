"""The two messages about compaction, a poll down and a report up, and their bytes on the wire.

Every poll carries the group's watermarks, so a member that missed one learns them from the next. Keeps no state.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

VERSION = 2
"""Version 1 had no MXFO and no MXRO."""

_POLL = struct.Struct(">BiiqqB")
_REPORT = struct.Struct(">BiiqqqqB")
_REPORT_MXFO = struct.Struct(">q")


class UnreadableMessageError(ValueError):
    """Bytes that are no message of this version. The receiver ignores them: the next poll says everything again."""


def _check(data: bytes, sizes: tuple[int, ...]) -> None:
    if len(data) not in sizes or data[0] != VERSION:
        raise UnreadableMessageError(f"{len(data)} bytes beginning with {data[:1].hex() or 'nothing'}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """Leader to member. `answer` requests a report; without it the poll only distributes."""

    leader: int
    leader_epoch: int
    mtro: int
    mxro: int
    answer: bool = True

    def encode(self) -> bytes:
        return _POLL.pack(VERSION, self.leader, self.leader_epoch, self.mtro, self.mxro, self.answer)

    @classmethod
    def decode(cls, data: bytes) -> Poll:
        _check(data, (_POLL.size,))
        _, leader, epoch, mtro, mxro, answer = _POLL.unpack(data)
        return cls(leader=leader, leader_epoch=epoch, mtro=mtro, mxro=mxro, answer=bool(answer))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Member to leader, in answer to a poll of that leader epoch. `mxfo` is None from a member of version 1.

    `mtro` and `mxro` are the group's watermarks as the member knows them: a leader that was never polled itself may know less.
    """

    member: int
    incarnation: int
    leader_epoch: int
    mcco: int
    mxfo: int | None
    mtro: int = 0
    mxro: int = 0

    def encode(self) -> bytes:
        tail = b"" if self.mxfo is None else _REPORT_MXFO.pack(self.mxfo)
        body = (self.incarnation, self.mcco, self.mtro, self.mxro)
        return _REPORT.pack(VERSION, self.member, self.leader_epoch, *body, len(tail)) + tail

    @classmethod
    def decode(cls, data: bytes) -> Report:
        _check(data, (_REPORT.size, _REPORT.size + _REPORT_MXFO.size))
        _, member, epoch, incarnation, mcco, mtro, mxro, size = _REPORT.unpack(data[: _REPORT.size])
        if size != len(data) - _REPORT.size:
            raise UnreadableMessageError(f"a report of {len(data)} bytes that says {size} follow its head")
        mxfo = _REPORT_MXFO.unpack(data[_REPORT.size :])[0] if size else None
        return cls(
            member=member, incarnation=incarnation, leader_epoch=epoch, mcco=mcco, mxfo=mxfo, mtro=mtro, mxro=mxro
        )


Message = Poll | Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Effect: try to deliver the message to the member. If it is lost, only progress is delayed."""

    to: int
    message: Message
