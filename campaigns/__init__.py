"""Campaigns over the house itself: they take minutes to hours, print what they found, and are no part of the package."""
