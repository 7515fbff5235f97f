"""``keeplast attach``: tiered topics of a live Kafka cluster, one file a command."""
