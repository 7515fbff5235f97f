"""Object stores as files: ports, handles, places."""
