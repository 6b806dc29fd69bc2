"""`headstone lake mend`: reports what damaged objects cost, and continues without what cannot be read.

Calls and renders; `lake/jobs/mending.py` decides what is lost.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from headstone.cli.engines import IN_PROCESS, add_engine_arguments, engine_of
from headstone.cli.lake_opening import open_named
from headstone.cli.output import BAD, Output
from headstone.cli.parsing import DONE, FINDINGS
from headstone.units import count

if TYPE_CHECKING:
    from headstone.cli.lake import LakeActions
    from headstone.lake.jobs.mending import MendPlan

PAST = "it is not mended: `headstone lake gc --apply` forgets it after its grace"


def add_arguments(actions: LakeActions) -> None:
    mend = actions.add(
        "mend", "show what is lost in damaged objects; with --apply, rewrite what can be read and give up the rest",
        "lake_mending.mend", "/data/lake", "/data/lake --apply",
        exit_codes={FINDINGS: "damage was found and not mended"},
    )  # fmt: skip
    mend.add_argument("--apply", action="store_true", help="apply the changes (default: only show them)")
    mend.add_argument(
        "--accept-older-values", action="store_true",
        help="also mend where the lost keys are unknown, so that older values of them may be served",
    )  # fmt: skip
    add_engine_arguments(mend, auto=IN_PROCESS)


def mend(arguments: argparse.Namespace, output: Output) -> int:
    """Returns 1 if there is damage that is not mended."""
    from headstone.lake.jobs.mending import mend as mend_lake
    from headstone.lake.jobs.mending import mend_document, planned
    from headstone.lake.jobs.store_check import check_store
    from headstone.pipeline.progress import ProgressLine

    with (
        open_named(arguments, damaged=True) as lake,
        engine_of(arguments, verb="lake mend", spark_by_default=False) as engine,
    ):
        with ProgressLine(enabled=not output.quiet) as progress:
            plan = planned(lake, check_store(lake, engine=engine, board=progress.board))
        left = []
        if arguments.apply:
            left = mend_lake(lake, plan, engine, accept_older_values=arguments.accept_older_values)
    output.answer(
        lambda: mend_document(plan, left, applied=arguments.apply),
        [
            *(f"{problem}; it is written again from the metastore" for problem in (*plan.identity, *plan.end)),
            *map(str, plan.mends),
            *(f"{problem}; the journal is written anew from the metastore" for problem in plan.journal),
            *(output.painted(problem, BAD) for problem in plan.strange),
            *(f"{problem}; {PAST}" for problem in plan.past),
            *(output.painted(f"NOT MENDED: {text}", BAD) for text in left),
            *_sums(plan, left, applied=arguments.apply),
        ],
    )  # fmt: skip
    return FINDINGS if left or plan.past or plan.strange or (plan.damaged and not arguments.apply) else DONE


def _sums(plan: MendPlan, left: Sequence[str], *, applied: bool) -> Iterator[str]:
    what = "mended" if applied else "to mend; --apply does it"
    if plan.damaged:
        yield f"{count(len(plan.mends) - len(left), 'extent')} {what}" if plan.mends else what
    elif not plan.past and not plan.strange:
        yield "nothing is damaged"
