"""What every command runs in: options, guard, exit codes, wiring."""
