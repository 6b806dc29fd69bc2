"""Where bytes are: local disks and object stores behind one small face. Knows nothing of Kafka."""
