"""What people and Prometheus are told of the guard.

`current_status` and `status` say how it stands, `metrics` serves that as Prometheus text, `log_lines` has its news in words and
`grouping` makes few lines of many. Values in, words out; changes nothing.
"""
