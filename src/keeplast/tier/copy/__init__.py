"""Copies a partition directory into a store, beside a cleaner that is not ours."""
