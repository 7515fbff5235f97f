"""The daemon: which partitions are cleaned when, and what is reported of it."""
