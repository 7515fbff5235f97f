"""Keys that must go: requests, where their traces are and how long, and certificates of it."""
