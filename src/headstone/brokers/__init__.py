"""Throwaway clusters of real brokers, clients for them, and the stories played on them.

`processes.Cluster` starts and stops brokers of a `distribution`, `client.KafkaClient` works with them through Kafka's Java
client, `outages` plays the four corruptions.
"""
