"""A pytest plugin (`-p tests.events`) for tests/run.py: a line of JSON for the number of tests, and one for each as it ends."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

EVENTS = "HEADSTONE_TEST_EVENTS"


def tell(**event: Any) -> None:
    with Path(os.environ[EVENTS]).open("a") as events:
        events.write(json.dumps(event) + "\n")


class Telling:
    def __init__(self) -> None:
        self.counted = False

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:
            tell(count=len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        if not self.counted:
            self.counted = True
            tell(count=len(ids))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        over = report.when == "call" or report.outcome != "passed"
        if over:
            why = reason_of_skip(report) if report.skipped else report.longreprtext if report.failed else ""
            tell(
                test=report.nodeid, outcome=report.outcome, seconds=round(report.duration, 3), when=report.when, why=why
            )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            tell(test=report.nodeid, outcome="failed", seconds=0, when="collect", why=report.longreprtext)


def reason_of_skip(report: pytest.TestReport) -> str:
    """Also of an expected failure, which counts as skipped."""
    if hasattr(report, "wasxfail"):
        return f"xfail: {report.wasxfail}".strip(": ")
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    return reason.removeprefix("Skipped: ")


def pytest_configure(config: pytest.Config) -> None:
    """In the process that hears of all tests, not in the workers."""
    if os.environ.get(EVENTS) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Telling())
