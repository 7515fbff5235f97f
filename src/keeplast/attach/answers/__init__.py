"""Answers about attached partitions, and what is held for people: status, fates, keys, dates."""
