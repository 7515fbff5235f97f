"""The same log in object storage: remote segments, the metadata store that alone says what is live.

Objects are written once and never overwritten. Every change of what is live is one transaction of
the metadata store, refused when the caller's leader epoch is not the newest one.
"""
