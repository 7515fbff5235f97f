"""Which packages a command needs that a bare installation has not."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from keeplast.errors import InvalidError, installing

TIER_PACKAGES = ("sqlalchemy", "alembic", "obstore")
SIGNING_PACKAGES = ("cryptography",)


def check_packages() -> None:
    """Raise InvalidError when the packages of the tier are not installed."""
    _check(TIER_PACKAGES, "the tier needs", "tier")


def check_signing() -> None:
    """Raise InvalidError when what signs and checks certificates is not installed."""
    _check(SIGNING_PACKAGES, "certificates need", "cluster")


def _check(names: Sequence[str], who: str, extra: str) -> None:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise InvalidError(
            f"{who} more packages; {installing(extra)}. missing={', '.join(missing)}"
        )
