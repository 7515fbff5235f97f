"""What programs open: a log, a store."""
