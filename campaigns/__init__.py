"""Campaigns over the whole project: they take minutes to hours, print what they found, and are not part of the package."""
