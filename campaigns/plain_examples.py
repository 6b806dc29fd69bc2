"""A pytest plugin for mutants: the first failing example is enough, and none fails because the machine is busy.

Otherwise Hypothesis would spend minutes on shrinking the example that kills a mutant.
"""

from __future__ import annotations

from hypothesis import Phase, settings

settings.register_profile(
    "mutants", deadline=None, database=None, phases=(Phase.explicit, Phase.generate), report_multiple_bugs=False
)
settings.load_profile("mutants")
