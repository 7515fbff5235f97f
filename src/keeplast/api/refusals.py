"""What a kind of place cannot do, why, and what to do there instead: one table of *verb by place*.

The docs' table is generated from it, and every refusal is worded here. A verb that is not in it can
be done in every kind of place.
"""

from __future__ import annotations

from msgspec import Struct

from keeplast.config.place_properties import PlaceKind
from keeplast.errors import RefusedError


class Refusal(Struct, frozen=True):
    """Why a kind of place cannot do something, and what to do instead; without a full stop."""

    why: str
    instead: str


REFUSALS: dict[tuple[str, PlaceKind], Refusal] = {
    ("plan --compare", PlaceKind.STORE): Refusal(
        "two strategies are compared in a data directory alone",
        "write the log into one with keeplast export --as log, and compare there",
    ),
    ("plan --compare", PlaceKind.CLUSTER): Refusal(
        "two strategies are compared in a data directory alone",
        "compare in a broker's data directory",
    ),
    ("clean --expired", PlaceKind.CLUSTER): Refusal(
        "a live cluster's topic is not due for what has expired alone",
        "leave --expired out: such a round drops it too, and --despite dirty-ratio does one now",
    ),
    **{
        ("status --exact", kind): Refusal(
            "what a round would save is counted by the status of a live cluster alone",
            "use keeplast plan",
        )
        for kind in (PlaceKind.DIRECTORY, PlaceKind.STORE)
    },
    **{
        (verb, kind): refusal
        for kind in (PlaceKind.STORE, PlaceKind.CLUSTER)
        for verb, refusal in {
            "status --now-ms": Refusal(
                f"a {kind} is looked at as it is now",
                "leave --now-ms out",
            ),
            "status --tombstones": Refusal(
                f"a status of a {kind} reads no batches",
                "leave --tombstones out; keeplast explain reads them, of a key",
            ),
            "status --round-seconds": Refusal(
                f"when old values of a {kind} are gone follows from its sizes",
                "leave --round-seconds out",
            ),
            "verify AFTER": Refusal(
                f"a {kind} is judged by itself: its metadata says what is live",
                "leave AFTER out; logs that were exported are compared as directories",
            ),
            "verify --replicas": Refusal(
                "replicas lie in brokers' data directories",
                "compare two of those: keeplast verify ONE OTHER --replicas",
            ),
            "verify --receipt-head": Refusal(
                f"a {kind}'s commits keep the heads of its receipts",
                "leave --receipt-head out: --receipt FILE is held against those heads",
            ),
            "verify --now-ms": Refusal(
                f"a {kind} is judged as it is now",
                "leave --now-ms out",
            ),
        }.items()
    },
    **{
        ("run --host-dir", kind): Refusal(
            f"hosts share the partitions of a store, and a {kind} has none",
            "leave --host-dir, --role and --lease-ms out",
        )
        for kind in (PlaceKind.DIRECTORY, PlaceKind.CLUSTER)
    },
    ("clean --only-expire", PlaceKind.CLUSTER): Refusal(
        "brokers themselves let go of what retention lets go of in a live cluster",
        "set retention.ms and retention.bytes of the topic there, with kafka-configs.sh",
    ),
    ("delete-records", PlaceKind.CLUSTER): Refusal(
        "the brokers of a live cluster keep the log start",
        "use Kafka's own kafka-delete-records.sh; the next round follows it",
    ),
    **{
        (verb, PlaceKind.STORE): refusal
        for verb, refusal in {
            "delete-records --remove": Refusal(
                "replaced segments of a store stay until their grace has passed, for its readers",
                "leave --remove out; keeplast collect removes them then",
            ),
            "delete-records --high-watermark": Refusal(
                "all that a store has is replicated",
                "leave --high-watermark out",
            ),
            "delete-records --despite log-bounds": Refusal(
                "no limit of a store is lifted",
                "leave --despite log-bounds out",
            ),
            "collect --orphans": Refusal(
                "a store collects objects without a row in any case, once they are old enough",
                "leave --orphans out; --garbage-age-ms says how old that is",
            ),
            "repair --rebuild": Refusal(
                "the metadata of a store cannot be made again from its objects",
                "restore the newest backup, then keeplast repair --accept-metadata",
            ),
            "pause": Refusal(
                "hosts of a store have no common switch",
                "end keeplast run on each of them, or keep rounds from a point with keeplast hold",
            ),
        }.items()
    },
    ("collect", PlaceKind.DIRECTORY): Refusal(
        "a round of a data directory removes the segments that it replaces itself",
        "leave those that undo keeps to their time, or let them go with keeplast undo --drop",
    ),
    ("repair", PlaceKind.DIRECTORY): Refusal(
        "the next round of a data directory ends what an interrupted one has left",
        "call keeplast clean or keeplast run again; a broker does it too when it starts",
    ),
    ("repair --truncate-to", PlaceKind.CLUSTER): Refusal(
        "brokers say where the log of a live cluster ends",
        "leave --truncate-to out; what a broker has truncated is followed by the next round",
    ),
    ("pause", PlaceKind.DIRECTORY): Refusal(
        "one process at a time has a data directory",
        "end keeplast run, or keep rounds from a point with keeplast hold",
    ),
    ("detach", PlaceKind.DIRECTORY): Refusal(
        "nothing of a data directory is kept elsewhere, so there is nothing to give up",
        "end keeplast run: the broker goes on with the directory as it is",
    ),
    **{
        (verb, kind): refusal
        for kind in (PlaceKind.STORE, PlaceKind.CLUSTER)
        for verb, refusal in {
            "export PLACE PLACE": Refusal(
                "a store and a cluster are read one at a time: only data directories of a cluster "
                "make up one place",
                "export each by itself",
            ),
            "export --despite partial-topics": Refusal(
                f"a {kind} says which partitions it has: no topic of it is partial",
                "leave --despite partial-topics out",
            ),
        }.items()
    },
    ("export --as log", PlaceKind.DIRECTORY): Refusal(
        "a data directory has its logs as a broker serves them",
        "copy its files while no broker runs; keeplast clean PLACE --to DIR writes cleaned ones",
    ),
    ("export --as log", PlaceKind.CLUSTER): Refusal(
        "what brokers have not copied to the remote tier yet would be missing in the log",
        "leave --as log out for the state, or take brokers' directories into a store: keeplast "
        "copy DATA_DIR STORE --new",
    ),
    ("copy", PlaceKind.DIRECTORY): Refusal(
        "copies go into a store, which knows what it has of each partition",
        "name a store: keeplast copy DATA_DIR sqlite:///FILE --new --objects URL",
    ),
    ("copy", PlaceKind.CLUSTER): Refusal(
        "brokers copy a live cluster's topics to its remote tier themselves",
        "name a store: keeplast copy DATA_DIR STORE",
    ),
    ("configure", PlaceKind.CLUSTER): Refusal(
        "brokers keep the settings of a live cluster, and the place's table those of keeplast",
        'write the table of the topic, [place.NAME.topic."T"], into keeplast.toml',
    ),
    ("undo", PlaceKind.CLUSTER): Refusal(
        "a round of a live cluster's topics is not put back: brokers may have let its segments go",
        "restore the topic from a state as of an earlier point: keeplast export --as-of",
    ),
}


def refused(verb: str, kind: PlaceKind, where: str) -> RefusedError:
    """Return the refusal of a verb; ``where`` names the place in the message."""
    found = REFUSALS[verb, kind]
    return RefusedError(f"{found.why}; {found.instead}. place={where}", code="K163")
