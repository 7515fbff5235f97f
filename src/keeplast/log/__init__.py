"""One partition's log on local disk: segments, files, lock, checkpoints, swap."""
