"""Brokers' refusals in words: the names of Kafka's errors, and which permission is missing.

Owns the texts. The code that makes a request names the permission that it needs.
"""

from __future__ import annotations

from headstone.errors import Unfinished
from headstone.log.shown import visible

OUT_OF_RANGE, UNKNOWN_TOPIC, NOT_REPLICA, TIMED_OUT = 1, 3, 6, 7
TOPIC_DENIED, GROUP_DENIED, CLUSTER_DENIED = 29, 30, 31
UNSUPPORTED_MECHANISM, NO_LOGIN_ASKED = 33, 34
ELECTION_NOT_NEEDED = 84
PASSING = (5, NOT_REPLICA, 9, 74, 75, 78)
"""Errors that a cluster returns while a leader changes."""
DENIED = (TOPIC_DENIED, GROUP_DENIED, CLUSTER_DENIED)
ERRORS = {
    -1: "UNKNOWN_SERVER_ERROR",
    OUT_OF_RANGE: "OFFSET_OUT_OF_RANGE",
    UNKNOWN_TOPIC: "UNKNOWN_TOPIC_OR_PARTITION",
    5: "LEADER_NOT_AVAILABLE",
    NOT_REPLICA: "NOT_LEADER_OR_FOLLOWER",
    TIMED_OUT: "REQUEST_TIMED_OUT",
    9: "REPLICA_NOT_AVAILABLE",
    17: "INVALID_TOPIC_EXCEPTION",
    TOPIC_DENIED: "TOPIC_AUTHORIZATION_FAILED",
    GROUP_DENIED: "GROUP_AUTHORIZATION_FAILED",
    CLUSTER_DENIED: "CLUSTER_AUTHORIZATION_FAILED",
    35: "UNSUPPORTED_VERSION",
    38: "INVALID_REPLICATION_FACTOR",
    39: "INVALID_REPLICA_ASSIGNMENT",
    40: "INVALID_CONFIG",
    41: "NOT_CONTROLLER",
    42: "INVALID_REQUEST",
    44: "POLICY_VIOLATION",
    56: "KAFKA_STORAGE_ERROR",
    57: "LOG_DIR_NOT_FOUND",
    58: "SASL_AUTHENTICATION_FAILED",
    60: "REASSIGNMENT_IN_PROGRESS",
    74: "FENCED_LEADER_EPOCH",
    75: "UNKNOWN_LEADER_EPOCH",
    78: "OFFSET_NOT_AVAILABLE",
    80: "PREFERRED_LEADER_NOT_AVAILABLE",
    83: "ELIGIBLE_LEADERS_NOT_AVAILABLE",
    ELECTION_NOT_NEEDED: "ELECTION_NOT_NEEDED",
    85: "NO_REASSIGNMENT_IN_PROGRESS",
    89: "THROTTLING_QUOTA_EXCEEDED",
}


class NotPermitted(Unfinished):
    """Grant this user the named permission, or do without."""

    def __init__(self, message: str, permission: str) -> None:
        super().__init__(message, permission)
        self.permission = permission

    def __str__(self) -> str:
        return str(self.args[0])


class NoAnswer(Unfinished):
    """The connection is lost. A question may be repeated on a new one; a change may or may not have arrived."""


class TimedOut(Unfinished):
    """The broker answers, but the brokers that it asked in turn did not in time: a change may or may not have arrived."""


class Passing(Unfinished):
    """A leader changes, or a log has moved on. Ask for the leader and the log's beginning again, and retry in a moment."""


def unfinished(message: str, code: int) -> Unfinished:
    return Passing(message) if code in PASSING else Unfinished(message)


def error_name(code: int) -> str:
    return ERRORS.get(code, f"error {code}")


def refusal(where: object, what: str, code: int, *, permission: str, text: str | None = None) -> Unfinished:
    """The error for a request to a broker; `permission` is the one that the request needs."""
    message = f"broker {where}: {visible(what)}: {error_name(code)}"
    if code in DENIED:
        # Without the broker's own text, which is the whole request and differs each time.
        return NotPermitted(f"{message}; this user lacks {permission}", permission)
    kind = TimedOut if code == TIMED_OUT else Unfinished
    return kind(message + (f": {visible(text)}" if text else ""))
