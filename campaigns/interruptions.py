"""`python -m campaigns.interruptions --rounds 1000 [--seed N]`: long verbs, interrupted at random moments; how do they end?

Each round starts one verb as a user does, on a small sample, and sends it one to three signals at moments that the seed draws,
some of them before Python has imported anything. It must end within ten seconds of the last signal, with an exit code of
docs/exit-codes.md, leave no process, lose nothing, and the same command must succeed afterwards. Prints what violated that.
With `--cluster VERSION` the verbs that talk to brokers, on real ones.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headstone.brokers.processes import Cluster
from headstone.cli.main import main as headstone
from headstone.log.codecs import LZ4
from headstone.sim.samples import SampleSettings
from headstone.sim.synth import write_sample
from testbed.maven import kafka, spark_connector

SECONDS_MAX = 10.0
PATIENCE_SECONDS = 120.0
"""How long the campaign waits for a process that does not end: then it is killed, and counts as a violation."""
MARK = "HEADSTONE_CAMPAIGN_ROUND"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PROCESS, SPARK = ("--engine", "process"), ("--engine", "spark", "--master", "local[2]")
TOPICS = {"orders": 3, "users": 2}
TOKEN = "token"


@dataclass(frozen=True, slots=True)
class Scene:
    """What the verbs of one round work on, created anew for it."""

    root: Path
    logs: Path
    """Shared by all rounds, and only read."""
    copy: Path
    lake: Path
    out: Path
    name: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    name: str
    words: Callable[[Scene], list[str]]
    codes: frozenset[int] = frozenset({0, 3})
    """Undisturbed and interrupted; 1 if a verb has findings."""
    copies: bool = False
    lake: str = ""
    """`empty`; `filled` with the logs; or `damaged`, in one byte of its largest object."""
    endless: bool = False
    again: bool = True
    """Running the same command again continues or starts over. False if a directory has to be removed first."""
    whole: Callable[[Scene], bool] = lambda scene: True


def lake_is_right(scene: Scene) -> bool:
    return quietly("lake", "status", str(scene.lake), "--check") == 0


def lake_can_be_read(scene: Scene) -> bool:
    return all(quietly("lake", "read", str(scene.lake), topic) == 0 for topic in TOPICS)


def verbs(engine: Sequence[str]) -> list[Verb]:
    lake_engine = [*engine]
    on = "spark" if "spark" in engine else "process"
    both = [
        Verb(name=f"inspect ({on})", words=lambda s: ["inspect", str(s.logs), *engine]),
        Verb(
            name=f"compact --out ({on})", words=lambda s: ["compact", str(s.logs), "--out", str(s.out), *engine],
            whole=lambda s: quietly("inspect", str(s.out)) == 0,
        ),
        Verb(
            name=f"compact --in-place ({on})", copies=True,
            words=lambda s: ["compact", str(s.copy), "--in-place", "--split", "shuffle", *engine],
            whole=lambda s: quietly("audit", str(s.logs), str(s.copy)) == 0,
        ),
        Verb(name=f"audit ({on})", copies=True, words=lambda s: ["audit", str(s.logs), str(s.copy), *engine]),
        Verb(
            name=f"lake ingest ({on})", lake="empty", whole=lake_is_right,
            words=lambda s: ["lake", "ingest", str(s.lake), str(s.logs), *lake_engine],
        ),
        Verb(
            name=f"lake compact ({on})", lake="filled", whole=lake_is_right,
            words=lambda s: ["lake", "compact", str(s.lake), "--all", *lake_engine],
        ),
        Verb(
            name=f"lake compact --purge ({on})", lake="filled", whole=lake_is_right,
            words=lambda s: ["lake", "compact", str(s.lake), "--all", "--purge", *lake_engine],
        ),
        Verb(
            name=f"demo ({on})", words=lambda s: ["demo", "--dir", str(s.out), *engine], again=False,
        ),
    ]  # fmt: skip
    both += with_lake(engine, on)
    return both if on == "spark" else [*both, *alone()]


def with_lake(engine: Sequence[str], on: str) -> list[Verb]:
    return [
        Verb(
            name=f"lake status --deep ({on})", lake="filled",
            words=lambda s: ["lake", "status", str(s.lake), "--deep", *engine],
        ),
        Verb(
            name=f"lake mend --apply ({on})", lake="damaged", whole=lake_can_be_read,
            codes=frozenset({0, 1, 3}),  # 1: what an interrupted run has mended is damage of the past for the next
            words=lambda s: ["lake", "mend", str(s.lake), "--apply", "--accept-older-values", *engine],
        ),
        Verb(
            name=f"lake worker ({on})", lake="filled", whole=lake_is_right,
            words=lambda s: ["lake", "worker", str(s.lake), "--every-ms", "60000", *engine], again=False, endless=True,
        ),
        Verb(
            name=f"lake export ({on})", lake="filled",
            words=lambda s: [
                "lake", "export", str(s.lake), "--all-topics", "--log-dirs", str(s.out),
                *(word for topic in TOPICS for word in ("--topic-id", f"{topic}=AAAAAAAAQACAAAAAAAAAA{topic[0].upper()}")),
                *engine,
            ],
        ),
        Verb(name=f"lake read ({on})", lake="filled", words=lambda s: ["lake", "read", str(s.lake), "orders", *engine]),
        Verb(
            name=f"lake erase ({on})", lake="filled", whole=lake_is_right, codes=frozenset({0, 1, 3}), again=False,
            words=lambda s: ["lake", "erase", str(s.lake), "orders", "--key", "key-000000000001", *engine],
        ),
    ]  # fmt: skip


def alone() -> list[Verb]:
    """Verbs that are the same with every engine."""
    return [
        Verb(name="synth", words=lambda s: ["synth", str(s.out), "--records", "150000"], again=False),
        Verb(name="simulate", words=lambda s: ["simulate", "--seeds", "100", "--jobs", "2"]),
        Verb(name="reproduce", words=lambda s: ["reproduce"]),
        Verb(
            name="lake rebuild", lake="filled", whole=lake_is_right, words=lambda s: ["lake", "rebuild", str(s.lake)],
            codes=frozenset({0, 1, 3}),
        ),
        Verb(
            name="lake prove-erased", lake="filled", codes=frozenset({0, 1, 3}),
            words=lambda s: ["lake", "prove-erased", str(s.lake), "orders", "--key", "nobody"],
        ),
        Verb(
            name="lake gc --apply", lake="filled", whole=lake_is_right,
            words=lambda s: ["lake", "gc", str(s.lake), "--apply", "--grace-ms", "0"],
        ),
        Verb(
            name="lake topics drop", lake="filled", whole=lake_is_right, again=False,
            words=lambda s: ["lake", "topics", str(s.lake), "drop", "orders", "--yes"],
        ),
        Verb(
            name="lake adopt", lake="filled", whole=lake_is_right, words=lambda s: ["lake", "adopt", str(s.lake)],
        ),
    ]  # fmt: skip


def on_cluster(cluster: Cluster) -> list[Verb]:
    """Without `guard readmit --apply`, which needs a wrong replica (`campaigns.guarded_outages` kills it), and short
    questions."""
    reached, log_dir = ("--bootstrap", cluster.bootstrap), str(cluster.brokers[1].log_dir)
    jars = ("--spark-conf", f"spark.jars={spark_connector()}")
    return [
        Verb(name="audit --bootstrap", words=lambda s: ["audit", *reached, *_topics(), *PROCESS]),
        Verb(
            name="lake ingest --bootstrap", lake="empty", whole=lake_is_right,
            words=lambda s: ["lake", "ingest", str(s.lake), *reached, *_topics(), *jars],
        ),
        Verb(
            name="lake ingest --continuous", lake="empty", whole=lake_is_right, endless=True, again=False,
            words=lambda s: ["lake", "ingest", str(s.lake), *reached, *_topics(), "--continuous", *jars],
        ),
        *(_restore(reached, engine, on) for engine, on in ((PROCESS, "process"), (SPARK, "spark"))),
        Verb(
            name="guard", endless=True, again=False,
            words=lambda s: [
                "guard", *reached, "--apply", "--journal", str(s.out), "--metrics", "127.0.0.1:0", "--poll-ms", "500",
            ],
        ),
        Verb(
            name="agent", endless=True, again=False,
            words=lambda s: [
                "agent", "--log-dirs", log_dir, "--guard", f"http://{cluster.bootstrap}", "--interval", "1s",
                "--token", f"file:{cluster.root / TOKEN}",
            ],
        ),
    ]  # fmt: skip


def _restore(reached: Sequence[str], engine: Sequence[str], on: str) -> Verb:
    return Verb(
        name=f"lake restore ({on})", lake="filled",
        words=lambda s: [
            "lake", "restore", str(s.lake), "orders", *reached, "--to-topic", f"restored-{s.name}",
            "--offset-map", str(s.root / "map.json"), *engine,
        ],
    )  # fmt: skip


def _topics() -> list[str]:
    return [word for topic in TOPICS for word in ("--topic", topic)]


@contextlib.contextmanager
def brokers(version: str, records: int) -> Iterator[Cluster]:
    """Two real brokers that have the sample's topics."""
    with tempfile.TemporaryDirectory(prefix="headstone-interruptions-") as root:
        lake = str(Path(root) / "lake")
        require(quietly("lake", "init", lake) == 0, "a lake was made")
        require(
            quietly("lake", "ingest", lake, str(make_logs(Path(root), records)), *PROCESS) == 0, "a lake was filled"
        )
        with Cluster(kafka(version), Path(root) / "cluster", brokers=2) as cluster:
            cluster.format()
            cluster.start()
            for topic in TOPICS:
                copied = ("--bootstrap", cluster.bootstrap, "--replication-factor", "2", *PROCESS)
                require(quietly("lake", "restore", lake, topic, *copied) == 0, "a topic was filled")
            (cluster.root / TOKEN).write_text("an agent's token")
            yield cluster


def quietly(*words: str) -> int:
    return answered(*words)[0]


def answered(*words: str) -> tuple[int, str]:
    """Exit code and stderr. Runs in this process, where imports are already done."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as stderr:
        try:
            return headstone([*words]), stderr.getvalue()
        except SystemExit as ended:
            return int(ended.code or 0), stderr.getvalue()


@dataclass(slots=True, kw_only=True)
class Ended:
    """One round. `seconds` since the last signal that it took, None if it ended before the first."""

    verb: str
    number: int
    code: int
    signals: int
    seconds: float | None
    faults: list[str] = field(default_factory=list)


def make_logs(root: Path, records: int) -> Path:
    logs = root / "logs"
    for seed, (topic, partitions) in enumerate(TOPICS.items()):
        settings = SampleSettings(
            topic=topic,
            partitions=partitions,
            records=records,
            keys=records // 10,
            transactions=0.2,
            codec=LZ4,
            seed=seed,
        )
        write_sample(logs, settings)
    return logs


def scene_of(verb: Verb, root: Path, logs: Path) -> Scene:
    scene = Scene(root=root, logs=logs, copy=root / "copy", lake=root / "lake", out=root / "out")
    if verb.copies:
        shutil.copytree(logs, scene.copy)
    if verb.lake:
        require(quietly("lake", "init", str(scene.lake)) == 0, "a lake was made")
    if verb.lake in ("filled", "damaged"):
        require(quietly("lake", "ingest", str(scene.lake), str(logs), *PROCESS) == 0, "a lake was filled")
    if verb.lake == "damaged":
        damage(max((path for path in scene.lake.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size))
        require(not lake_can_be_read(scene), "a lake was damaged")
    return scene


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def require(is_so: bool, what: str) -> None:
    if not is_so:
        raise RuntimeError(f"the campaign itself: not so that {what}")


def fingerprint(directory: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(directory)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def hears(process: int, number: int) -> bool:
    """Whether Python has installed its handler: before that, the system ends the process."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False
    (caught,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")]
    return bool(int(caught, 16) >> (number - 1) & 1)


def left_running(mark: str) -> list[str]:
    """Every process that has inherited this round's mark, wherever it has moved to."""
    names = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdecimal() and f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                names.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:80])
    return names


def interrupt(verb: Verb, scene: Scene, draw: random.Random, number: int, seconds_whole: float) -> Ended:
    mark = uuid.UUID(int=draw.getrandbits(128)).hex
    with tempfile.TemporaryFile() as stderr:
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "headstone.cli.start", *verb.words(scene)], stdout=subprocess.DEVNULL, stderr=stderr,
            env=os.environ | {MARK: mark}, start_new_session=True,
        )  # fmt: skip
        early, taken, last = False, 0, began
        moments = sorted(_moments(draw, seconds_whole))
        for moment in moments:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, began + moment - time.monotonic()))
                break
            which = draw.choice(SIGNALS)
            early = early or not hears(process.pid, signal.SIGTERM)  # Python itself catches SIGINT from its start
            last, taken = time.monotonic(), taken + 1
            process.send_signal(which)
        try:
            if verb.endless and not taken:
                process.send_signal(signal.SIGTERM)
                last, taken = time.monotonic(), 1
            process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        seconds = time.monotonic() - last if taken else None
        stderr.seek(0)
        text = stderr.read().decode(errors="replace")
    ended = Ended(verb=verb.name, number=number, code=process.returncode, signals=taken, seconds=seconds)
    ended.faults += _faults(verb, ended, early=early, text=text)
    ended.faults += [f"left running: {name}" for name in _still_running(mark)]
    return ended


def _moments(draw: random.Random, seconds_whole: float) -> Iterable[float]:
    first = draw.uniform(0, 0.5) if draw.random() < 0.2 else draw.uniform(0, seconds_whole)
    yield first
    for _ in range(draw.choice((0, 0, 1, 2))):
        yield first + draw.choice((0.0, draw.uniform(0, 2)))


def _still_running(mark: str) -> list[str]:
    """Waits for processes that are still ending: a child learns of its parent's end by its pipe."""
    deadline = time.monotonic() + SECONDS_MAX
    while (names := left_running(mark)) and time.monotonic() < deadline:
        os.sched_yield()
        time.sleep(0.1)
    return names


def _faults(verb: Verb, ended: Ended, *, early: bool, text: str) -> Iterable[str]:
    if ended.seconds is not None and ended.seconds > SECONDS_MAX and (verb.endless or ended.code != 0):
        yield f"ended {ended.seconds:.1f} s after the last signal"
    if ended.code not in verb.codes and not (early and ended.code in (1, *(-number for number in SIGNALS))):
        yield f"exit code {ended.code}: {text.strip()[-300:]}"
    if "Traceback" in text and not early:
        yield f"a stack trace: {text.strip()[-300:]}"


def after(verb: Verb, scene: Scene, ended: Ended, logs_before: str) -> Iterable[str]:
    """Nothing is lost, and running the same command again succeeds."""
    if fingerprint(scene.logs) != logs_before:
        yield "its input has changed"
    if ended.code not in verb.codes:
        return
    if verb.again and ended.code == 3:
        words = verb.words(scene)
        engine = words.index("--engine") if "--engine" in words else len(words)
        code, text = answered(*words[:engine], *(PROCESS if engine < len(words) else ()))
        if code not in verb.codes - {3}:
            yield f"the same command ended with {code}: {text.strip()[-500:]}"
    if (verb.again or verb.lake) and not verb.whole(scene):
        yield "what it leaves is not whole"


def campaign(
    chosen: Sequence[Verb], *, rounds: int, seed: int, records: int, tell: Callable[[Ended], None]
) -> list[Ended]:
    endings = []
    with tempfile.TemporaryDirectory(prefix="headstone-interruptions-") as work:
        logs = make_logs(Path(work), records)
        before = fingerprint(logs)
        whole: dict[str, float] = {}
        for number in range(seed, seed + rounds):
            draw = random.Random(number)
            verb = chosen[number % len(chosen)]
            root = Path(work) / f"round-{number}"
            root.mkdir()
            try:
                scene = scene_of(verb, root, logs)
                if verb.name not in whole:
                    whole[verb.name] = _seconds_of(verb, scene)
                    shutil.rmtree(root)
                    root.mkdir()
                    scene = scene_of(verb, root, logs)
                ended = interrupt(verb, scene, draw, number, whole[verb.name])
                ended.faults += after(verb, scene, ended, before)
            finally:
                shutil.rmtree(root, ignore_errors=True)
            endings.append(ended)
            tell(ended)
    return endings


def _seconds_of(verb: Verb, scene: Scene) -> float:
    """How long it takes without interruption; for one that never ends by itself, some seconds."""
    if verb.endless:
        return 6.0
    began = time.monotonic()
    command = [sys.executable, "-m", "headstone.cli.start", *verb.words(scene)]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return time.monotonic() - began


def summary(endings: Sequence[Ended]) -> Iterable[str]:
    for name in sorted({ended.verb for ended in endings}):
        some = [ended for ended in endings if ended.verb == name]
        seconds = sorted(ended.seconds for ended in some if ended.seconds is not None)
        codes = ", ".join(f"{code}: {count}" for code, count in sorted(Counter(ended.code for ended in some).items()))
        late = (
            f"median {statistics.median(seconds):.1f} s, longest {seconds[-1]:.1f} s" if seconds else "all ended before"
        )
        faults = sum(bool(ended.faults) for ended in some)
        yield f"{name:30} {len(some):4} rounds, {len(seconds):4} interrupted; codes {codes}; {late}; {faults} violated"
    for ended in endings:
        yield from (f"seed {ended.number}: {ended.verb}: {fault}" for fault in ended.faults)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m campaigns.interruptions", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first round; each round has the next one")
    parser.add_argument("--engine", choices=("process", "spark", "both"), default="both")
    parser.add_argument("--cluster", metavar="VERSION", help="of Kafka, such as 4.3.1")
    parser.add_argument("--verb", action="append", default=[], help="only verbs whose name begins so; may be repeated")
    parser.add_argument("--records", type=int, default=60_000, help="per partition of the sample")
    arguments = parser.parse_args(words)
    for number in SIGNALS:  # a verb leaves signals alone that it was told to ignore, as by nohup
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    with contextlib.ExitStack() as stack:
        if arguments.cluster:
            chosen = on_cluster(stack.enter_context(brokers(arguments.cluster, arguments.records)))
        else:
            engines = [engine for engine in (PROCESS, SPARK) if arguments.engine in ("both", engine[1])]
            chosen = [verb for engine in engines for verb in verbs(engine)]
        if arguments.verb:
            chosen = [verb for verb in chosen if verb.name.startswith(tuple(arguments.verb))]
        endings = campaign(
            chosen, rounds=arguments.rounds, seed=arguments.seed, records=arguments.records,
            tell=lambda ended: print(
                f"{ended.number}: {ended.verb}: {ended.signals} signals, code {ended.code}, "
                f"{'ended before' if ended.seconds is None else f'{ended.seconds:.1f} s'} {'; '.join(ended.faults)}",
                file=sys.stderr, flush=True,
            ),
        )  # fmt: skip
    print("\n".join(summary(endings)))
    return 1 if any(ended.faults for ended in endings) else 0


if __name__ == "__main__":
    sys.exit(main())
