"""`python -m headstone.spark.warmup`: once after installing, so that the first real run does not pay for it.

Compiles the kernels into Numba's cache and lets Spark leave an archive of its loaded classes. Nothing depends on it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from headstone.log import codecs
from headstone.log.kernel_cache import forget_others
from headstone.pipeline.compaction import CompactionRequest, compact
from headstone.pipeline.machine import SHUFFLE, WHOLE
from headstone.retention.policy import Policy
from headstone.sim.samples import SampleSettings
from headstone.sim.synth import write_sample
from headstone.spark.engine import OnSpark
from headstone.spark.session import StartingSession


def main() -> None:
    forget_others()
    with tempfile.TemporaryDirectory(prefix="headstone-") as here:
        source = Path(here) / "source"
        for codec in range(len(codecs.NAMES)):
            sample = SampleSettings(
                topic=f"t{codec}", records=600, keys=200, codec=codec, transactions=0.5, segment_bytes=20_000
            )
            write_sample(source, sample)
        with StartingSession(app_name="headstone warmup", master=None, remote=None, conf={}, archive=True) as session:
            session.begin()
            for path in (WHOLE, SHUFFLE):
                request = CompactionRequest(
                    paths=(str(source),), out=Path(here) / path, policy=Policy(now_ms=0), path=path, progress=False
                )
                compact(request, OnSpark(session.get, parallelism=2), lambda text: None)


if __name__ == "__main__":
    main()
