"""One file per verb: parse, make one call, render. `main` is the entry point, `Output` the way to stdout and stderr."""
