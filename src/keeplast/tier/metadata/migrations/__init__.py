"""The history of the metadata store's tables (Alembic); what is released is never edited."""
