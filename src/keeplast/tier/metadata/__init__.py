"""The metadata store: what is live, who may write, and what was there before."""
