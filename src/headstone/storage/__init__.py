"""Where bytes are: local disks and object stores behind one small interface. Knows nothing about Kafka."""
