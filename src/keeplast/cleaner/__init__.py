"""What is decided per log, segment and group: eligibility, groups, transactions, plan. Pure."""
