"""The commands of ``keeplast tier``."""
