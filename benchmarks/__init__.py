"""Measures keeplast next to Kafka's own cleaner on the same logs, in the same run."""
