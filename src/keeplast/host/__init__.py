"""A partition's leader or follower: its local log, and the same log in object storage."""
