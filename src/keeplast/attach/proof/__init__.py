"""Whether what a live cluster serves is right, by brokers and by objects."""
