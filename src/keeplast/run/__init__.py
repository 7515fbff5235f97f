"""Rounds on directories: deciding, executing, committing."""
