"""Over a hundred ways to use the command line wrongly: each ends with its exit code and a line or two that name the thing.

In process, without Spark and without servers. `{…}` in a command is a place that `places` makes.
"""

from __future__ import annotations

import os
import re
import shlex
import socket

import pytest

from headstone.cli.main import VERBS
from tests.cli.scenes import exit_code, stopped_broker, write_log

LINES_MAX = 3
HUGE = "9" * 30
UNIQUE = "a-mistyped-settings-value"
"""In no other text: values of secrets are hidden from now on, wherever they stand."""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("bad-inputs")
    log = write_log(root / "log", "N[a] N[b] | T[a] N[c]")
    write_log(root / "other", "N[a] N[b] | T[a] N[c]")
    segment = log / "orders-0" / "00000000000000000000.log"
    (root / "empty").mkdir()
    (root / "file").write_text("text\n")
    (root / "binary.toml").write_bytes(b"\x00\xff\xfe")
    index = root / "indexes" / "00000000000000000000.index"
    index.parent.mkdir()
    index.write_bytes(b"")
    (root / "copy.log").write_bytes(segment.read_bytes())
    for name, content in (
        ("old", b"\0" * 16 + b"\0" + b"\0" * 60),
        ("text", b"not a log\n" * 20),
        ("torn", b"\0" * 30),
    ):
        spoilt = write_log(root / name, "N[a] | N[b]")
        (spoilt / "orders-0" / segment.name).write_bytes(content)
    write_log(root / "checkpoint", "N[a] | N[b]")
    (root / "checkpoint" / "cleaner-offset-checkpoint").write_text("0\n1\norders zero 1\n")
    left = write_log(root / "left", "N[a] | N[b]")
    (left / "orders-0" / "00000000000000000000.log.swap").touch()
    (root / "hollow" / "orders-0").mkdir(parents=True)
    dangling = write_log(root / "dangling", "N[a] | N[b]") / "orders-0" / segment.name
    dangling.unlink()
    dangling.symlink_to(root / "gone" / segment.name)
    (root / "nested" / "inner" / "orders-0").mkdir(parents=True)
    (root / "named-0").write_text("a file called as a partition")
    (root / "keys").write_bytes(b"\xff\xfe\n")
    write_log(root / "recent", "N[a]@1700000000000 | N[b]@1700000000000")
    (stopped_broker(root / "killed") / ".kafka_cleanshutdown").unlink()
    assert exit_code("lake", "init", root / "lake") == 0
    assert exit_code("lake", "ingest", root / "lake", log) == 0
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    return {
        **{path.stem if path.suffix == ".toml" else path.name: str(path) for path in root.iterdir()},
        "segment": str(segment), "root": str(root), "index": str(index),
        "nowhere": f"127.0.0.1:{port}", "copied": str(root / "copy.log"), "part": str(log / "orders-0"),
    }  # fmt: skip


BAD: list[tuple[str, int, str]] = [
    # what no verb takes
    ("", 2, "name one VERB; there are agent, audit, compact"),
    ("--verison", 2, "did you mean --version?"),
    ("compakt {log}", 2, "did you mean compact?"),
    ("Inspect {log}", 2, "did you mean inspect?"),
    ("--verbose", 2, "'--verbose' is not recognized"),
    ("inspect {log} --topics orders", 2, "did you mean --topic?"),
    ("inspect {log} --outptu=json", 2, "did you mean --output?"),
    ("inspect {log} --output yaml", 2, "json, text"),
    ("inspect {log} --output", 2, "--output"),
    ("inspect {log} --quiet=yes", 2, "--quiet"),
    ("lake", 2, "name one ACTION; there are adopt, compact"),
    ("lake --outptu=json", 2, "'--outptu=json' is not recognized"),
    ("lake status {file}", 2, "is a file; name the directory of a lake"),
    ("lake ingets {lake} {log}", 2, "did you mean ingest?"),
    ("lake topics {lake} lst", 2, "did you mean list?"),
    ("lake topics {lake} list orders more", 2, "'more'"),
    ("completion powershell", 2, "bash, fish, zsh"),
    ("completion", 2, "SHELL"),
    # configuration
    ("inspect {log} --config {root}/none.toml", 2, "none.toml: no such file"),
    ("inspect {log} --config {empty}", 3, "empty"),
    ("inspect {log} --config {binary}", 2, "binary.toml"),
    ("inspect {log} --config {file}", 2, "invalid TOML"),
    # inspect
    ("inspect", 2, "PATH"),
    ("inspect ''", 2, "'': no such directory"),
    ("inspect {root}/none", 2, "none: no such directory"),
    ("inspect {empty}", 2, "expected folders named <topic>-<partition>"),
    ("inspect {nested}", 2, "name them one by one (inner)"),
    ("inspect {hollow}", 2, "no .log file"),
    ("inspect {file}", 2, "not a segment file"),
    ("inspect {named-0}", 2, "not a segment file"),
    ("inspect {index}", 2, "name 00000000000000000000.log beside it"),
    ("inspect {copied}", 2, "20 digits"),
    ("inspect {segment}.deleted", 2, "no such file"),
    ("inspect {root}/missing.log", 2, "no such file; name a .log file, a partition directory or a log directory"),
    ("inspect {dangling}", 2, "0.log: a link to a file that is not there"),
    ("inspect {left}", 2, "an interrupted compaction was left here"),
    ("inspect {left}/orders-0/00000000000000000000.log.swap", 2, "left over from a compaction"),
    ("inspect {old}", 2, "position 0"),
    ("inspect {text}", 2, "position 0"),
    ("inspect {torn}", 2, "position 0"),
    ("inspect {checkpoint}", 2, "cleaner-offset-checkpoint, line 3"),
    ("inspect {log} --topic ordres", 2, "did you mean orders?"),
    ("inspect {log} --topic ''", 2, "there are orders"),
    ("inspect {log} --topic 注文", 2, "no partition of topic 注文"),
    ("inspect {log} --offsets 7:5", 2, "7:5 is empty: the first offset must be below the second"),
    ("inspect {log} --offsets 5:5", 2, "5:5 is empty"),
    ("inspect {log} --offsets 5", 2, "5 is not A:B"),
    ("inspect {log} --offsets a:b", 2, "'a' is not an offset"),
    ("inspect {log} --offsets=-1:3", 2, "-1 is not between 0 and"),
    ("inspect {log} --now-ms yesterday", 2, "'yesterday' is not a time, such as 2026-11-18T09:30:00Z, "),
    ("inspect {log} --now-ms 2023-13-01", 2, "'2023-13-01' is not a time"),
    ("inspect {log} --now-ms 1969-12-31T23:59:59Z", 2, "--now-ms: "),
    ("inspect {log} --now-ms " + HUGE, 2, "--now-ms"),
    ("inspect {log} --min-compaction-lag-ms 3weeks", 2, "'3weeks' is not a duration"),
    ("inspect {log} --engine sparks", 2, "did you mean spark?"),
    ("inspect {log} --engine process --master local[1]", 2, "leave out --master"),
    ("inspect ftp://host/logs", 2, "ftp"),
    ("inspect s3://", 2, "bucket"),
    ("inspect {log} --store-conf region", 2, "expected K=V"),
    ("inspect s3://b --store-conf regin=" + UNIQUE, 2, "unknown setting 'regin' of s3://; did you mean region?"),
    ("inspect s3://b --store-conf secret_acces_key=" + UNIQUE, 2, "did you mean secret_access_key?"),
    ("inspect s3://b --store-conf alow_http=" + UNIQUE, 2, "did you mean allow_http?"),
    ("inspect s3://b --store-conf xyzzy=" + UNIQUE, 2, "'xyzzy' of s3://; settings have obstore's names"),
    ("inspect gs://b --store-conf service_acount=" + UNIQUE, 2, "did you mean service_account?"),
    ("inspect az://b --store-conf acount_key=" + UNIQUE + " --store-conf account_name=account", 2, "mean account_key?"),
    # compact
    ("compact {log}", 2, "headstone compact: say where the result goes: --out DIR, --in-place, or --dry-run"),
    ("compact {log} --out {root}/o --in-place", 2, "not allowed with"),
    ("compact {log} --out ''", 2, "--out: expected a directory, found an empty text"),
    ("compact {log} --out {root}/o --peer ''", 2, "--peer: expected a directory, found an empty text"),
    ("compact '' --in-place", 2, "'': no such directory"),
    ("compact {log} --out {file} --engine process", 2, "file"),
    ("compact {log} --out {file}/deeper --engine process", 2, "is a file; name a directory"),
    ("compact {log} --out {log} --engine process", 2, "lies inside the input"),
    ("compact {part} --out {log} --engine process", 2, "lies inside the input"),
    ("compact {part} --out {part}/new --engine process", 2, "lies inside the input"),
    ("compact {killed} --in-place --topic orders --engine process", 2, "did not stop cleanly"),
    ("compact {recent} --in-place --now-ms 1700000000", 2, "give a time such as 2026-11-18T09:30:00Z"),
    ("compact {log} --out {other} --engine process", 2, "orders-0 already exists"),
    ("compact {log} {log} {other} --out {root}/o --engine process", 2, "more than one input"),
    ("compact {segment} --out {root}/o --engine process", 2, "a file; name a partition directory"),
    ("compact {log} --out {root}/deep/er --master foo", 2, "master foo: expected local[N]"),
    ("compact {root}/none --in-place --engine process", 2, "none: no such directory"),
    ("compact {text} --in-place --engine process", 2, "position 0"),
    ("compact {text} --out {root}/o1 --engine process", 2, "position 0"),
    ("compact {log} --dry-run --topic ordres", 2, "did you mean orders?"),
    ("compact {log} --dry-run --topic orders --all-topics", 2, "not allowed with"),
    ("compact {log} --dry-run --rules coordinate", 2, "did you mean coordinated?"),
    ("compact {log} --dry-run --rules kafka --tombstones-below 4", 2, "--rules coordinated"),
    ("compact {log} --dry-run --rules kafka --markers-below 3", 2, "--rules coordinated"),
    ("compact {log} --dry-run --rules kafka --plain-below 3", 2, "--rules coordinated"),
    ("compact {log} --dry-run --peer {other} --plain-below 3", 2, "leave out --plain-below"),
    ("compact {log} --dry-run --rules mine", 2, "--rules: unknown 'mine'; there are coordinated, kafka"),
    ("compact {log} --dry-run --peer {root}/none", 2, "none: no such log directory"),
    ("compact {log} --dry-run --peer {log}", 2, "name the other replicas"),
    ("compact {log} --dry-run --peer {part}", 2, "is a partition directory"),
    ("compact {part} --in-place --peer {log}", 2, "is what is compacted"),
    ("compact {log} --dry-run --peer {file}", 2, "no such log directory"),
    ("compact {log} --dry-run --index-keys-max 0", 2, "--index-keys-max"),
    ("compact {log} --tombstones-below=-1", 2, "--tombstones-below: -1 is not between 0 and"),
    ("compact {log} --markers-below=-1", 2, "--markers-below: -1 is not between 0 and"),
    ("compact {log} --delete-retention-ms=-1", 2, "--delete-retention-ms: -1 is not between 0 and"),
    ("compact {log} --retention-ms=-2", 2, "--retention-ms: -2 is not between -1 and 9223372036854775807 ms"),
    ("compact {log} --now-ms=-1", 2, "--now-ms: '-1' is not a time"),
    ("compact {log} --now-ms 253402300800000", 2, "is not between 0 and 253402300799999"),
    ("compact {log} --segment-bytes 13", 2, "--segment-bytes: 13 is not between 14 and 2147483647"),
    ("compact {log} --segment-bytes 2147483648", 2, "2147483648 is not between 14 and 2147483647"),
    ("compact {log} --segment-index-bytes 3", 2, "3 is not between 4 and 2147483647"),
    ("compact {log} --index-interval-bytes 2147483648", 2, "is not between 0 and 2147483647"),
    ("compact {log} --producer-id-expiration-ms 2147483648", 2, "is not between 1 and 2147483647"),
    ("compact {log} --min-cleanable-dirty-ratio 1.1", 2, "1.1 is not between 0 and 1"),
    ("compact {log} --min-cleanable-dirty-ratio nan", 2, "nan is not between 0 and 1"),
    ("compact {log} --min-cleanable-dirty-ratio half", 2, "'half' is not a number from 0 to 1"),
    ("compact {log} --task-memory-mb 0", 2, "0 is not between 1 and 16777216"),
    ("compact {log} --dirty-from 1.5", 2, "'1.5' is not a whole number from 0 to 9223372036854775807"),
    ("compact {log} --dry-run --cleanup-policy compcat", 2, "did you mean compact?"),
    ("compact {log} --dry-run --delete-retention-ms " + HUGE, 2, "--delete-retention-ms"),
    ("compact {log} --dry-run --spark-conf x", 2, "expected K=V"),
    # audit
    ("audit", 2, "name the log directories of the replicas"),
    ("audit {log}", 2, "at least two replicas"),
    ("audit {log} {log}", 2, "named twice"),
    ("audit {log} {root}/none", 2, "none: no such directory"),
    ("audit {log} {segment}", 2, "a file; name"),
    ("audit {log} {other} --topic ordres", 2, "did you mean orders?"),
    ("audit {log} {other} --topic orders --topic nope", 2, "no partition of topic nope"),
    ("audit {log} {other} --bootstrap h:1", 2, "name the log directories of the replicas, or a cluster"),
    ("audit {log} {other} --report {empty}", 2, "is a directory"),
    ("audit {log} {other} --findings {root}/none/f", 2, "is not a directory"),
    ("audit {log} {other} --keys-file {root}/none", 3, "none: No such file"),
    ("audit --bootstrap nohost", 2, "expected HOST:PORT"),
    ("audit --bootstrap h:99999", 2, "99999"),
    ("audit --bootstrap {nowhere} --kafka-conf a", 2, "expected K=V"),
    ("audit --bootstrap {nowhere} --kafka-conf ssl.magic=1", 2, "ssl.magic"),
    ("audit --bootstrap {nowhere} --kafka-conf security.protocol=TLS", 2, "TLS"),
    ("audit --bootstrap {nowhere} --kafka-conf sasl.password=file:/no/such", 2, "/no/such"),
    ("audit --bootstrap {nowhere} --bytes-per-second 0", 2, "--bytes-per-second"),
    ("audit --cluster nope", 2, "--cluster nope"),
    ("audit --bootstrap {nowhere}", 3, "{nowhere}"),
    # synth
    ("synth", 2, "DIR"),
    ("synth {log}", 2, "is not empty"),
    ("synth {file}", 2, "file"),
    ("synth {root}/s --topic ''", 2, "'' is not a valid topic name"),
    ("synth {root}/s --topic a/b", 2, "'a/b' is not a valid topic name"),
    ("synth {root}/s --topic ..", 2, "'..' is not a valid topic name"),
    ("synth {root}/s --topic ../../x", 2, "'../../x' is not a valid topic name"),
    ("synth {root}/s --topic größe", 2, "'größe' is not a valid topic name"),
    ("synth {root}/s --topic " + "x" * 250, 2, "up to 249 letters"),
    ("synth {root}/s --records 0", 2, "--records"),
    ("synth {root}/s --records 1e3", 2, "'1e3'"),
    ("synth {root}/s --replicas 101", 2, "101 is not between 1 and 100"),
    ("synth {root}/s --value-bytes-max 1000001", 2, "1000001 is not between 0 and 1000000"),
    ("synth {root}/s --tombstones 2", 2, "--tombstones"),
    ("synth {root}/s --codec zst", 2, "did you mean zstd?"),
    ("synth {root}/s --value-bytes-min 9 --value-bytes-max 3", 2, "--value-bytes-min is above --value-bytes-max"),
    ("synth {file}/deeper", 3, "a file where a directory is expected"),
    # demo, simulate, reproduce
    ("demo --dir {log}", 2, "is not empty"),
    ("simulate --seed=-1", 2, "-1 is not between 0 and 9223372036854775807"),
    ("simulate --replicas 10", 2, "10 is not between 1 and 9"),
    ("simulate --rules kafak", 2, "did you mean kafka?"),
    ("simulate --mutant nope", 2, "rules; `headstone simulate --mutant list`"),
    ("simulate --rules kafka --mutant list-all", 2, "unknown mutant 'list-all'"),
    ("simulate --mutant maximum --rules kafka", 2, "leave --rules out"),
    ("simulate --mutant maximum --rules guarded", 2, "unknown mutant 'maximum' of the guarded rules"),
    ("simulate --mutant poll_ms", 2, "unknown mutant 'poll_ms' of the coordinated rules"),
    ("simulate --rules guarded --replicas 3", 2, "leave --replicas out"),
    ("simulate --replicas 0", 2, "0 is not between 1 and 9"),
    ("simulate --seeds 0", 2, "0 is not between 1 and 1000000000"),
    ("reproduce nonsense", 2, "unknown variant 'nonsense'; there are aborted-to-committed"),
    ("reproduce --rules mine", 2, "unknown 'mine'; there are both, coordinated, kafka"),
    ("reproduce tombstone", 2, "did you mean tombstone-divergence?"),
    ("reproduce --kafka-home {empty}", 2, "empty"),
    # lake
    ("lake status {root}/none", 2, "none"),
    ("lake status {empty}", 2, "empty"),
    ("lake status {file}", 2, "file"),
    ("lake status mysql://h/db", 2, "mysql"),
    ("lake status env:NO_SUCH_VARIABLE", 2, "NO_SUCH_VARIABLE"),
    ("lake init {lake}", 2, "lake"),
    ("lake ingest {lake}", 2, "name what to ingest"),
    ("lake ingest {lake} {root}/none", 2, "none: no such directory"),
    ("lake ingest {lake} {log} --continuous", 2, "--continuous"),
    ("lake ingest {lake} {log} --topic ordres", 2, "did you mean orders?"),
    ("lake ingest {lake} {log} --topic-conf ordrs:segment.bytes=1000", 2, "did you mean orders?"),
    ("lake init ''", 2, "'' is no lake"),
    ("lake status ''", 2, "'' is no lake"),
    ("synth {root}/s --retention 1d", 2, "'--retention' is not recognized"),
    ("lake ingest {lake} {log} --topic-conf orders", 2, "expected TOPIC:K=V"),
    ("lake ingest {lake} {log} --topic-conf orders:segment.byts=1", 2, "did you mean segment.bytes?"),
    ("lake ingest {lake} {log} --topic-conf ordres:segment.bytes=1000", 2, "ordres"),
    ("lake ingest {lake} {log} --cleanup-policy compat", 2, "did you mean compact?"),
    ("lake ingest {lake} {text}", 2, "position 0"),
    ("lake read {lake} ordres", 2, "did you mean orders? it has orders"),
    ("lake read {lake} ''", 2, "it has orders"),
    ("lake read {lake} orders --partition 7", 2, "its partitions are 0"),
    ("lake read {lake} orders --view tables", 2, "did you mean table?"),
    ("lake read {lake} orders --as-of soon", 2, "'soon' is not a time"),
    ("lake read {lake} orders --to {empty}", 2, "empty"),
    ("lake read {lake} orders --to {root}/none/x.parquet", 2, "none"),
    ("lake topics {lake} describe ordres", 2, "did you mean orders?"),
    (
        "lake topics {lake} delete-records ordres --partition 0 --before 1 --yes",
        2,
        "did you mean orders? it has orders",
    ),
    ("lake topics {lake} delete-records orders --partition 7 --before 1 --yes", 2, "orders-7; its partitions are 0"),
    ("lake topics {lake} create a/b", 2, "'a/b' is not a valid topic name"),
    ("lake topics {lake} create new --conf delete.retention.mss=1", 2, "did you mean delete.retention.ms?"),
    ("lake topics {lake} create orders", 2, "already exists"),
    ("lake topics {lake} alter ordres --conf segment.bytes=1000", 2, "did you mean orders?"),
    ("lake topics {lake} alter orders --conf segment.bytes=few", 2, "segment.bytes"),
    ("lake topics {lake} drop ordres --yes", 2, "did you mean orders?"),
    ("lake topics {lake} delete-records orders --yes", 2, "--partition"),
    (
        "lake topics {lake} delete-records orders --partition 0 --before 999 --yes",
        2,
        "delete records before offset 999",
    ),
    ("lake retain {lake} --topic ordres", 2, "did you mean orders?"),
    ("lake compact {lake} --topic ordres", 2, "did you mean orders?"),
    ("lake request {lake} ordres", 2, "did you mean orders?"),
    ("lake request {lake} --topic orders --partition 2147483648", 2, "is not between 0 and 2147483647"),
    ("lake hold {lake} reader", 2, "name what to hold with --topic"),
    ("lake hold {lake} reader --topic ordres", 2, "did you mean orders?"),
    ("lake hold {lake} reader --topic orders --offset 1000", 2, "orders-0 ends at 4"),
    ("lake hold {lake} reader --topic orders --offset -1", 2, "--offset"),
    ("lake erase {lake} ordres --key a", 2, "did you mean orders?"),
    ("lake erase {lake} orders", 2, "--key"),
    ("lake erase {lake} orders --key-hex xy", 2, "xy"),
    ("lake erase {lake} orders --keys-file {root}/none", 2, "none"),
    ("lake prove-erased {lake} orders", 2, "--key"),
    ("lake export {lake} nope --log-dirs {root}/made", 2, "no topic nope"),
    ("lake export {lake} ordres --log-dirs {empty}", 2, "did you mean orders?"),
    ("lake export {lake} orders", 2, "--log-dirs"),
    ("lake restore {lake} ordres --bootstrap {nowhere}", 2, "ordres"),
    ("lake restore {lake} orders --bootstrap {nowhere} --to-topic a/b", 2, "'a/b' is not a valid topic name"),
    ("lake worker {lake} --partitions-at-once 0", 2, "--partitions-at-once"),
    ("lake pause {lake} nobody", 2, "nobody"),
    # guard, agent
    ("guard", 2, "name a cluster with --bootstrap HOSTS"),
    ("guard status", 2, "name a cluster with --bootstrap HOSTS"),
    ("guard release", 2, "name a cluster with --bootstrap HOSTS"),
    ("guard --bootstrp kafka-1:9092", 2, "headstone guard: '--bootstrp' is not recognized; did you mean --bootstrap?"),
    ("--confg x inspect {log}", 2, "headstone: '--confg' is not recognized"),
    ("guard chek", 2, "headstone guard: ACTION: unknown 'chek'; did you mean check? "),
    ("guard --once chek", 2, "headstone guard: ACTION: unknown 'chek'; did you mean check? "),
    ("guard --topic orders chek", 2, "headstone guard: ACTION: unknown 'chek'; did you mean check? "),
    ("guard --poll-ms 30x", 2, "--poll-ms: '30x' is not a duration, such as 90s, 15m, 12h, 1d, 500ms, or"),
    ("guard --poll-ms 366d", 2, "--poll-ms: 366d is not between 1 and 31536000000 ms (365 d)"),
    ("guard --poll-ms 0", 2, "0 is not between 1 and"),
    ("guard --slack-share 1.1", 2, "1.1 is not between 0 and 1"),
    ("guard --allow everything", 2, "unknown 'everything'; there are cluster-default, readmission"),
    ("guard --metrics 9464", 2, "'9464' is not HOST:PORT, such as 127.0.0.1:9464"),
    ("guard --metrics localhost:70000", 2, "is not HOST:PORT"),
    ("guard --bootstrap {nowhere} --once", 3, "{nowhere}"),
    ("guard --bootstrap :9092 --once", 2, ":9092"),
    ("guard status --bootstrap {nowhere} --topic orders", 2, "'--topic' is not recognized"),
    ("agent --log-dirs {log}", 2, "--guard"),
    ("agent --log-dirs {root}/none --print", 2, "none"),
    ("agent --log-dirs {log} --print --interval 1ms", 2, "--interval: 1ms is not between 1000 and 3600000 ms"),
    ("agent --log-dirs {log} --guard {nowhere} --once", 2, "meta.properties: missing"),
]


def test_every_verb_is_among_them() -> None:
    assert {"", *VERBS} <= {words.partition(" ")[0] for words, _, _ in BAD}


@pytest.mark.parametrize(("words", "code", "names"), BAD, ids=[words[:60] for words, _, _ in BAD])
def test_it_is_told_in_a_line_or_two(
    words: str, code: int, names: str, places: dict[str, str], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("XDG_CONFIG_HOME", places["empty"])
    monkeypatch.chdir(places["root"])
    before = sorted(os.listdir(places["root"]))
    ended = exit_code(*(_filled(word, places) for word in shlex.split(words)))
    captured = capsys.readouterr()
    said = [line for line in captured.err.splitlines() if "no watermarks" not in line]
    assert (ended, "Traceback" in captured.err) == (code, False), captured.err
    assert 1 <= len(said) <= LINES_MAX, captured.err
    assert _filled(names, places) in captured.err
    assert max(map(len, said)) < 600
    advice = re.fullmatch("see `(headstone.*) --help` for options and examples", said[-1])
    assert (advice is None) == (code == 3 or "position 0" in captured.err or ": NOT read: " in captured.err)
    assert advice is None or f"headstone {words} ".startswith(f"{advice[1]} ")
    assert captured.out == ""
    assert sorted(os.listdir(places["root"])) == before, "it left something"


def _filled(word: str, places: dict[str, str]) -> str:
    for name, place in places.items():
        word = word.replace(f"{{{name}}}", place)
    return word
