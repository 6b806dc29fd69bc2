"""Throwaway clusters of real brokers, clients of them, and the stories played on them."""
