"""What is known of a partition in a store, as values. Pure."""
