"""Tiered topics of a live cluster, compacted where they lie: rounds, decisions, publication."""
