"""What a log is before anything is done to it: sizes, producers, samples, horizons."""
