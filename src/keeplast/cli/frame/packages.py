"""Which packages a command needs that a bare installation has not."""

from __future__ import annotations

import importlib.util

from keeplast.errors import InvalidError, installing

TIER_PACKAGES = ("sqlalchemy", "alembic", "obstore")


def check_packages() -> None:
    """Raise InvalidError when the packages of the tier are not installed."""
    missing = [name for name in TIER_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise InvalidError(
            f"the tier needs more packages; {installing('tier')}. missing={', '.join(missing)}"
        )
