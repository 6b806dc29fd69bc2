"""How fast replicas are read over the wire unless somebody says otherwise.

A number only, so that a command line can name it without the wire behind it.
"""

from __future__ import annotations

BYTES_PER_SECOND = 50 << 20
"""Over all brokers: a fraction of what one disk gives, so that consumers do not notice."""
