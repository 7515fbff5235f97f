"""Rounds on directories: deciding, executing, committing."""

from functools import partial
from typing import TYPE_CHECKING

from keeplast.errors import module_when_named

if not TYPE_CHECKING:
    __getattr__ = partial(module_when_named, __name__)
