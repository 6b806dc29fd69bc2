"""Real servers for tests and for people, fetched from package registries and started on loopback. No Docker.

Not part of the package. What starts and stops brokers is: `headstone.brokers.processes`.
"""
