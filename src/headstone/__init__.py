"""Headstone keeps compacted Kafka topics small and correct."""

__version__ = "0.1.0"
