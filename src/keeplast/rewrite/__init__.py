"""What one task does: index, resolve, rewrite, check. Decides nothing, commits nothing."""
