"""Many partitions at once: plan, bodies of tasks, commit, report; the engine in this process. No Spark, no brokers, no SQL."""
