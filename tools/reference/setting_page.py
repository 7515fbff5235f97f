"""The page of settings, from the definitions of :mod:`keeplast.config`.

The rule that a reader must not break: names, defaults and ranges are the definitions'; only the
words before them stand here.
"""

from __future__ import annotations

from collections.abc import Iterable

from keeplast.config.definition import Definition, Scope, value_range, value_text, value_words
from keeplast.config.definitions import DEFINITIONS
from tools.reference.text import NOTICE

HEAD = f"""# Settings

{NOTICE}

Kafka's settings that keeplast knows: their defaults, their ranges, and what each one changes.

Names, defaults and ranges are Kafka's. `keeplast config --key KEY` shows what this page says.

```console
$ keeplast config DATA_DIR --topic orders --effective
```

The command shows which value counts, and where it came from.

## Where a value comes from

| source | about the topic | about the cluster |
|---|---|---|
| flag | `--config segment.bytes=…`: the chosen topics | `--config log.segment.bytes=…` |
| place | `[place.NAME.topic."name"]` | `[place.NAME.cluster]` |
| file | `[topic."name"]`, `"segment.bytes" = …` | `[cluster]`, `"log.segment.bytes" = …` |
| environment | | `KEEPLAST_LOG_SEGMENT_BYTES=…` |
| `__cluster_metadata-0` | its dynamic settings | those of the cluster and of this broker |
| `--broker-config server.properties` | | its static settings, by the broker's names alone |

* A topic's value beats the cluster's, and the cluster's beats the default.
* For the same scope an earlier row of the table beats a later one.
* Within one source the first broker's name that is set counts.

## The file

The file is `keeplast.toml` in the data directory, or the file that `--config-file` names. Keys may
be quoted or dotted. Quote `compaction.strategy`, because another key begins with it. An empty
`compaction.strategy` of a topic means `offset`. An absent one means the cluster's.

`keeplast configure DATA_DIR KEY=VALUE --topic T` changes the file. `keeplast config --check FILE`
looks for mistakes in it.

## The broker's file

A broker keeps its cluster's settings in `server.properties`. keeplast reads it only when
`--broker-config FILE` names it.

* Without it `plan`, `clean` and `run` show which of Kafka's defaults they assume: those that
  decide when something may go, and whether a round is worth it. They are `assumed` in the JSON.
* With it nothing is assumed. A setting that the file leaves out has its default on the broker, too.
* The file has Java's form, and at most 4 MiB. The last one of a repeated name counts.
* Only settings of this page are taken from it. Passwords are neither kept nor shown.
* A setting that a broker ignores, such as `retention.ms` in place of `log.retention.ms`, is named
  in a warning. A value that cannot be used is refused with its line.
* A file whose `node.id` is not the directory's is named in a warning. `log.dirs` is not compared,
  because a copy lies elsewhere.

## How values are checked

An unknown name is refused with the nearest known one. Values of all sources are checked together:

* `min.compaction.lag.ms` must not exceed `max.compaction.lag.ms`.
* The strategy `header` needs the name of a header.
* A tiered topic's `local.retention.*` must not exceed its `retention.*`.
* A load factor outside (0, 1], or a key map without a usable slot, is refused with exit code 4.
* Settings without effect are accepted, checked, and named in a warning.
* `internal.segment.bytes`, Kafka 4's name for a `segment.bytes` below 1 MiB, wins over it.

`cleanup.policy` is never assumed. A topic without a stated policy is refused, because compacting
a `delete` topic loses its history. The cluster's `log.cleanup.policy=compact` counts where the
directory has a metadata log. Elsewhere name each topic with `--topic`, or give its policy in the
file: a topic that has a policy of its own would not show it.
"""


def page() -> str:
    """Return the page."""
    acting = [each for each in DEFINITIONS if each.has_effect]
    return "".join(
        [
            HEAD,
            "\n## Settings of a topic\n",
            *_entries(each for each in acting if each.scope is Scope.TOPIC),
            "\n## Settings of the cluster\n",
            *_entries(each for each in acting if each.scope is Scope.CLUSTER),
            "\n## Accepted without effect\n",
            *_entries(each for each in DEFINITIONS if not each.has_effect),
        ]
    )


def default_text(definition: Definition) -> str:
    """Return a default, with what it means when it is a span of time or a size."""
    if definition.default in (None, (), ""):
        return "none"
    words = value_words(definition, definition.default)
    return f"`{value_text(definition.default)}`" + (f" ({words})" if words else "")


def _entries(definitions: Iterable[Definition]) -> list[str]:
    lines = []
    for each in definitions:
        others = ", ".join(f"`{name.key}`" for name in each.synonyms if name.key != each.key)
        about = each.about if each.has_effect else f"{each.about} Without effect: {each.idle}."
        facts = [
            f"Type: {each.type.value}", f"default: {default_text(each)}",
            f"range: {value_range(each)}", *([f"broker's name: {others}"] if others else []),
        ]  # fmt: skip
        lines.append(f"\n### `{each.key}`\n\n{about}\n\n{'; '.join(facts)}.\n")
    return lines
