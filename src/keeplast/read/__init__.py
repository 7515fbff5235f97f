"""Records, states and ranges of a log as columns."""
