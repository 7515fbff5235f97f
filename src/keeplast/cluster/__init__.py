"""A live Kafka cluster whose tiered topics are looked at from outside: client, metadata, rules."""
