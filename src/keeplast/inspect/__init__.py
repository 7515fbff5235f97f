"""What can be said of a log without changing it: status, scans, verification, previews."""
