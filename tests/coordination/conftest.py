"""Properties run without a deadline: on a busy machine a slow example says nothing about the protocol."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("coordination", deadline=None)
settings.load_profile("coordination")
