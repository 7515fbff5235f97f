"""The daemon: which partitions are cleaned when, and what is told of it."""
