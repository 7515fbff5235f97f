"""Runs migrations on the connection that :mod:`keeplast.tier.metadata.database` hands in."""

from __future__ import annotations

from alembic import context

from keeplast.tier.metadata.schema import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    transactional_ddl=True,
)
context.run_migrations()
