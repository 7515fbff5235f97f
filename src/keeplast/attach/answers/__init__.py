"""What is told of attached partitions, and held for people: status, fates, keys, dates."""
