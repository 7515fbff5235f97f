"""The page of metrics, from the tables of :mod:`keeplast.service.metrics`.

The rule that a reader must not break: a metric's words are the code's, where it is also served.
"""

from __future__ import annotations

from keeplast.service.gauges import GAUGES
from keeplast.service.metrics import (
    ATTACHED_METRICS,
    BLOCKED,
    BLOCKED_ABOUT,
    COUNTERS,
    PARTITION_GAUGES,
    PARTITIONS,
    PARTITIONS_ABOUT,
    REMOVED_ABOUT,
    REMOVED_RECORDS,
    TIER_COUNTERS,
    TIER_GAUGES,
)
from tools.reference.tables import described
from tools.reference.text import NOTICE

HEAD = f"""# Metrics

{NOTICE}

The metrics that `keeplast run` serves to Prometheus, and Kafka's names for them.

```console
$ keeplast run DATA_DIR --metrics-port 9591
```

The path is `/metrics`. The server listens on the loopback, unless `--metrics-host` names another
address. A scrape shows the last published values: those after each look at the partitions, and
those after the rounds of each turn. Counters begin at 0 when the process starts.
"""
NAMED = ("name", "meaning")


def page() -> str:
    """Return the page."""
    sums = [(f"`{each.name}_total`", each.about) for each in COUNTERS]
    sums += [(f"`{REMOVED_RECORDS}_total`", REMOVED_ABOUT), (f"`{PARTITIONS}`", PARTITIONS_ABOUT)]
    sums.append((f"`{BLOCKED}`", BLOCKED_ABOUT))
    store = [(f"`{each.name}_total`", each.about) for each in TIER_COUNTERS]
    store += [(f"`{each.name}`", f"{each.about} By partition.") for each in TIER_GAUGES]
    live = [
        (f"`{each.name}{'_total' if each.is_counter else ''}`", each.about)
        for each in ATTACHED_METRICS
    ]
    gauges = [(f"`{each.metric}`", f"`{each.mbean}`", each.about) for each in GAUGES]
    partitions = [(f"`{each.name}`", each.about) for each in PARTITION_GAUGES]
    return "".join(
        [
            HEAD,
            "\n## Kafka's gauges\n\n",
            described(("Prometheus", "Kafka", "meaning"), gauges),
            "\nWhere they differ, it is [on purpose](../explanation/differences.md).\n",
            "\n## Sums and states\n\n",
            described(NAMED, sums),
            "\n## By partition\n\n",
            "Their labels are `topic` and `partition`. A partition that could never be read has\n"
            "none. One that is retried or set aside has those of the last look that went well.\n\n",
            described(NAMED, partitions),
            "\n## Of a store\n\nOver a store `keeplast run` serves these too.\n\n",
            described(NAMED, store),
            "\n## Of a live cluster\n\nOver a live cluster `keeplast run` serves these too.\n\n",
            described(NAMED, live),
        ]
    )
