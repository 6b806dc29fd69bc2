"""The default rate at which replicas are read over the wire.

A number only, so that a command line can use it without importing the wire client.
"""

from __future__ import annotations

BYTES_PER_SECOND = 50 << 20
"""Over all brokers: a fraction of one disk's rate, so that consumers do not notice."""
