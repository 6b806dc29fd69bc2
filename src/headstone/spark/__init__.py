"""The only room that imports pyspark: the engine on Spark, sessions, data sources, streams."""
