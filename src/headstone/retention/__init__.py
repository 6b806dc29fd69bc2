"""Which records survive, and why. Pure: arrays in, verdicts out.

    policy, settings         the settings that decide, as data
    survey, producers        what batch headers tell
    ranges, choosing         what a pass covers, and whether the cleaner would choose the log
    transactions, keys       roles of batches, states of records
    verdicts                 the rules, each stated once; docs/rules.md names them
    passes, rewrite          one pass: index, judge, rewrite

Start with `verdicts.py`. Knows arrays and bytes; nothing about brokers, engines or commits.
"""
