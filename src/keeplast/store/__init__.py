"""The tiered store: rounds, copies, status, expiry and upkeep of logs in object storage."""
