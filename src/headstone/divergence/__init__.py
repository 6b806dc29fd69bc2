"""Do the replicas of a partition tell readers the same story? Pure: facts and rows in, findings out."""
