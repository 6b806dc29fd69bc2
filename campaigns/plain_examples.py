"""A plugin of pytest for mutants: the first example that fails is enough, and none fails because the machine is busy.

Hypothesis would spend minutes on making the example of a killed mutant smaller.
"""

from __future__ import annotations

from hypothesis import Phase, settings

settings.register_profile(
    "mutants", deadline=None, database=None, phases=(Phase.explicit, Phase.generate), report_multiple_bugs=False
)
settings.load_profile("mutants")
