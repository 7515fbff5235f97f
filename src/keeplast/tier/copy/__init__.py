"""Copies a partition directory into a store, next to a cleaner that is not ours."""
