"""Live Kafka from outside: its wire protocol, its Admin API, its replicas, how to connect.

`connection.Connection` says how to reach a cluster. `admin.Admin` asks it and changes it, `wire.BrokerConnection` speaks to one
broker, `replicas` copies replicas over the wire and `live_audit` compares the copies. `live`, `topics`, `records` and `groups`
serve the lake, through librdkafka where needed.
"""
