"""What the options of several benchmarks accept."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """Return a number of an option that must be at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1: {number}")
    return number
