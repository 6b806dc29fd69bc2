"""How far tombstones and markers may go: the watermarks of a replica set."""
