"""What a principal must be allowed in an object store, by what is asked there.

Pure. The rule: **a right is named as its store names it, and never more than what was asked for
needs**. Answers to the actions of S3, the permissions of Google's store and the roles of Azure's.
"""

from __future__ import annotations

from enum import StrEnum


class StoreAction(StrEnum):
    """What is asked of a store; the value stands in messages."""

    READ = "read"
    LIST = "list"
    WRITE = "write"
    REPLACE = "replace"
    COPY = "copy"
    DELETE = "delete"


_READER = "the role Storage Blob Data Reader"
_CONTRIBUTOR = "the role Storage Blob Data Contributor"
_RIGHTS = {
    "s3": {
        StoreAction.READ: "s3:GetObject",
        StoreAction.LIST: "s3:ListBucket",
        StoreAction.WRITE: "s3:PutObject",
        StoreAction.REPLACE: "s3:PutObject",
        StoreAction.COPY: "s3:GetObject and s3:PutObject",
        StoreAction.DELETE: "s3:DeleteObject",
    },
    # To write over an object there takes the right to delete it.
    "gs": {
        StoreAction.READ: "storage.objects.get",
        StoreAction.LIST: "storage.objects.list",
        StoreAction.WRITE: "storage.objects.create",
        StoreAction.REPLACE: "storage.objects.create and storage.objects.delete",
        StoreAction.COPY: (
            "storage.objects.get, storage.objects.create and storage.objects.delete"
        ),
        StoreAction.DELETE: "storage.objects.delete",
    },
    "az": {
        each: _READER if each in (StoreAction.READ, StoreAction.LIST) else _CONTRIBUTOR
        for each in StoreAction
    },
}


def right_of(scheme: str, action: StoreAction) -> str:
    """Return what a principal needs for ``action``; any other scheme than a store's is files."""
    rights = _RIGHTS.get(scheme)
    if rights is None:
        return f"to {action} files and folders, as the user that they belong to or in its group"
    return rights[action]
