"""A partition in the hands of one process: what it sees, owns, announces and publishes."""
