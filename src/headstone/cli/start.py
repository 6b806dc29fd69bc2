"""The process `headstone`: handles signals before importing anything else, which takes a second, and until it has ended.

A library call is `main.main`, which leaves the process as it was.
"""

from __future__ import annotations

import signal
from types import FrameType

_early: list[int] = []


def _note(number: int, frame: FrameType | None) -> None:
    _early.append(number)


for _name in ("SIGINT", "SIGTERM", "SIGHUP"):
    _number = getattr(signal, _name, None)
    if _number is not None and not (_name == "SIGHUP" and signal.getsignal(_number) == signal.SIG_IGN):
        signal.signal(_number, _note)

import sys  # noqa: E402
from typing import NoReturn  # noqa: E402

from headstone.api.stopping import own_process  # noqa: E402
from headstone.errors import UNFINISHED  # noqa: E402


def start() -> NoReturn:
    with own_process() as signals:
        for number in _early:
            signals.keep(number)
        from headstone.cli.main import main

        code: object = UNFINISHED
        try:
            code = main()
        except SystemExit as ended:
            code = ended.code
        finally:
            signals.end_process_with(code if isinstance(code, int) else 0 if code is None else 1)
    sys.exit(code)


if __name__ == "__main__":
    start()
