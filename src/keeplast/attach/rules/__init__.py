"""What of a live tier may be compacted, and what its place is taken by: no cluster, no store."""
