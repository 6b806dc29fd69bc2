"""Which tests `make test` leaves out, and why each may be: patterns of test names (fnmatch), read by tests/conftest.py.

A test belongs here if a quicker one kills the same wrong code: the same behaviour on another database, store, engine or
version, more seeds, a whole story after its parts. One that alone kills a mutant of `campaigns/mutants` does not: `python -m
campaigns.code_mutants --quick` says so. `make test-all` and CI run everything.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

THOROUGH: tuple[tuple[str, str], ...] = (
    # Databases and stores: one suite over all of them, in full by `make test-all`.
    ("tests/lake/*postgresql*", "the same suite runs on SQLite"),
    # Seeds and races: a few seeds are enough to notice that a rule is gone.
    ("tests/lake/test_races.py::*", "test_seeded_races plays the same races, each from its seed"),
    ("tests/lake/test_seeded_races.py::test_races_of_many_seeds*", "more seeds of test_a_seed_is_one_race"),
    ("tests/lake/test_seeded_races.py::test_races_of_quick_jobs*", "more seeds of test_a_seed_is_one_race"),
    ("tests/lake/test_rebuild.py::test_an_old_copy*-[1-9]*", "more seeds"),
    ("tests/fuzz/test_mutations.py::test_mutated_logs*[[][1-9]*", "more seeds"),
    ("tests/fuzz/test_mutations.py::test_batches_that_expand_hugely*[[]shuffle*", "the same by one task"),
    ("tests/guard/test_suspended.py::*[[]copy_afresh*", "expulsions take the same way"),
    ("tests/guard/test_suspended.py::*[[]old_order*", "expulsions take the same way"),
    ("tests/sim/test_campaign.py::test_any_number_of_replicas[[][579]*", "more numbers"),
    ("tests/sim/test_campaign.py::*fresh_seeds*", "more seeds"),
    ("tests/lake/test_dead.py::test_whatever_is_marked*[[][4-9]*", "more seeds"),
    ("tests/lake/test_table_view.py::*-[1-9]*", "more seeds"),
    ("tests/lake/test_random_sequences.py::*[[][1cdof]*", "parts of what happens in `all`, by other seeds"),
    # Kills before every step: one story of each, all of them by `make test-all`.
    ("tests/log/test_swap.py::test_a_recovery_killed_at_any_step*", "test_power_loss recovers the same"),
    ("tests/log/test_swap.py::test_a_compaction_killed_at_any_step*[[]everything*", "the same steps, other contents"),
    ("tests/log/test_swap.py::test_a_compaction_killed_at_any_step*[[]more*", "the same steps, other contents"),
    ("tests/log/test_swap.py::test_a_compaction_killed_at_any_step*[[]trailing*", "the same steps, other contents"),
    ("tests/log/test_swap.py::test_a_compaction_killed_at_any_step*[[]coordinated*", "the same steps, other rules"),
    ("tests/lake/test_export_interrupted.py::test_killed_before_any_step*", "test_output_record kills the same way"),
    ("tests/pipeline/test_output_record.py::test_killed_in_an_object_store*", "the same on local files"),
    ("tests/lake/test_export_interrupted.py::test_killed_in_an_object_store*", "the same on local files"),
    ("tests/campaigns/test_interruptions.py::*", "test_stopping hears signals, verb by verb"),
    ("tests/campaigns/test_code_mutants.py::*", "of the campaign, and of no rule"),
    ("tests/test_thorough.py::*", "of this table, and of no rule"),
    ("tests/lake/test_metastore_benchmark.py::*", "of the benchmark, and of no rule"),
    # Sizes.
    ("tests/lake/test_erasure.py::test_more_keys_than_a_statement*", "rows.chunks has its own test"),
    ("tests/lake/test_leveling.py::test_leveling_keeps_up*", "a whole story after its parts"),
    ("tests/lake/test_redpanda_bugs.py::test_30740_30759*", "speed"),
    ("tests/lake/test_erasure.py::test_a_thousand_keys*", "speed"),
    ("tests/lake/test_restore.py::test_a_map_is_read_in_a_few_bytes*", "memory"),
    # Pages: README is pasted by `make test`, every page by `make test-all`.
    ("tests/docs/test_pages.py::test_a_page_is_true[[]docs/*", "README is pasted"),
    # Spark: every behaviour on one kind of session, the other kinds by `make test-all`.
    ("tests/spark/test_session.py::test_what_is_printed*", "test_given_up says the same without Spark"),
    ("tests/spark/test_session.py::test_the_first_run_leaves*", "speed of the start"),
    ("tests/spark/test_session.py::test_an_archive_that*", "speed of the start"),
    ("tests/spark/test_session.py::test_how_many_tasks*", "of a cluster's size"),
    ("tests/spark/test_callers_session.py::test_a_session_over_spark_connect*", "the same as on a classic one"),
    ("tests/spark/test_lake_follow.py::test_spark_streams_a_lake", "a whole story after its parts"),
    ("tests/spark/test_sources_objects.py::test_spark_reads_and_streams*", "a whole story after its parts"),
    ("tests/lake/test_secrets.py::test_spark_shows_no_secret", "test_no_verb_shows_a_secret"),
    ("tests/examples/test_examples.py::*backup_sql*", "docs/sql.md has the same query"),
    ("tests/clusters/test_command.py::*", "test_jobs runs the same stages by the library"),
    (
        "tests/clusters/test_jobs.py::test_a_backup_is_compacted*[[]shuffle*",
        "test_an_executor_that_is_killed takes both ways",
    ),
    ("tests/clusters/test_jobs.py::test_an_executor_that_is_killed*[[]whole*", "the same by a shuffle"),
    ("tests/clusters/test_jobs.py::test_a_worker_that_is_added*", "test_shared_nothing adds one"),
    ("tests/clusters/test_jobs.py::test_kafka_log_reads*", "tests/spark/test_source.py"),
    ("tests/clusters/test_jobs.py::test_a_store_with_faults*", "tests/pipeline/test_object_storage.py"),
    ("tests/clusters/test_lake.py::*[[]shuffle*", "the same by whole partitions"),
    ("tests/clusters/test_shared_nothing.py::*", "of the testbed, and of no rule"),
    # Real servers and processes: one of each by `make test`.
    ("tests/brokers/*", "rules have their tests in the rooms; QUICK has those that only a broker can answer"),
)
QUICK: tuple[str, ...] = (
    # SQL that differs between databases.
    "tests/lake/test_metastore.py::*", "tests/lake/test_commits.py::*", "tests/lake/test_queue.py::*",
    "tests/lake/test_identity.py::*",
    # Bytes that differ between versions; brokers that start on our output; the same cleaner; the guard on live brokers.
    "tests/brokers/test_format.py::*", "tests/brokers/test_boot.py::test_a_broker_goes_on*clean stop*",
    "tests/brokers/test_side_by_side.py::*4.3.1-tiny map*", "tests/brokers/test_guard_loop.py::*4.3.1*",
)  # fmt: skip
"""Tests that stay, whatever pattern they match."""


def is_thorough(name: str) -> bool:
    """name: of the test, as pytest tells it."""
    return any(fnmatchcase(name, pattern) for pattern, _ in THOROUGH) and not any(
        fnmatchcase(name, pattern) for pattern in QUICK
    )
