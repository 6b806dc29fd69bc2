"""The only room that imports pyspark: the engine on Spark, sessions, data sources, streams.

    engine, stages              the `Engine` of `pipeline/` on a Spark session
    session, java               starting and stopping Spark
    source, log_stream          the data source `kafka-log`: log directories
    lake_source, lake_follow    the data source `headstone`: lakes
    streams, lake_stream        from a running cluster into a lake

Decides nothing about records: that is in the rooms below.
"""
