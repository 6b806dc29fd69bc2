"""One file a verb: parse, call, render."""
