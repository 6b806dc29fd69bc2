"""What people and Prometheus see of the guard.

`current_status` and `status` have its state, `metrics` serves that as Prometheus text, `log_lines` puts its news into words,
and `grouping` merges similar lines. Values in, words out; changes nothing.
"""
