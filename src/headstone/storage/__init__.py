"""Where bytes are: local disks and object stores behind one small interface. Knows nothing about Kafka.

`places.place` turns a path or URL into a place to read from; `stores.Store` reads and writes the objects below a prefix;
`uploads.py` writes files and objects. `secrets.py` reads secrets, `redaction.py` keeps them out of messages.
"""
