"""Do the replicas of a partition tell readers the same story? Pure: facts and rows in, findings out.

`views` is what a replica would serve. `decisions` finds how transactions ended, `comparison.compare` which keys differ,
`explaining` who is wrong and how. `verdicts` and `advice` turn that into findings with what to do; `outcome` and `document` are
the audit's result.
"""
