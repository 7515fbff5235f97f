"""Exact codec of one value: bytes on disk to values and back. Pure."""
