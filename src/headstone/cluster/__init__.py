"""Live Kafka from outside: its wire protocol, its replicas, how to connect."""
