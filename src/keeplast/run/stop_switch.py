"""Asks work to end at its next safe point; a signal handler may call it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from keeplast.errors import StoppedError


class StopSwitch:
    """One call's request to end. Workers ask :meth:`check`, or hear of it by :meth:`heard`."""

    def __init__(self) -> None:
        self._is_stopped = False
        self._hear: Callable[[], None] | None = None

    @property
    def is_stopped(self) -> bool:
        """Say whether the end was asked for."""
        return self._is_stopped

    def stop(self) -> None:
        """Ask for the end."""
        self._is_stopped = True
        if self._hear is not None:
            self._hear()

    def check(self) -> None:
        """Raise StoppedError once the end was asked for."""
        if self._is_stopped:
            raise StoppedError("stopped on request; what is published stays, run again")

    @contextlib.contextmanager
    def heard(self, hear: Callable[[], None]) -> Iterator[None]:
        """Call ``hear`` when the end is asked for, also when it was before."""
        self._hear = hear
        if self._is_stopped:
            hear()
        try:
            yield
        finally:
            self._hear = None
