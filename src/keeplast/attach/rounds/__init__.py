"""A round in the remote tier: its sources as a directory, and the place where it is done."""
