"""Where the tasks of one round meet: each leaves a word, and goes on when all words are there.

Words are small files beside the log, which everybody sees. Spark's own barrier would do, but who
is not the last to come to it sleeps a second.

What a reader must not break: a word appears whole, by its rename, and says what depends on nothing
but the log. So it does no harm that one is heard that an earlier attempt of a task has said; what
it names may be gone. Whoever has waited too long leaves, so that nobody waits for ever; it must
then not stage anything, nor may what others staged be used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from keeplast.clock import Clock
from keeplast.errors import UnavailableError
from keeplast.format.filename import LOG
from keeplast.log.files import FileSystem
from keeplast.rewrite.output import staged_name

WORD_BYTES_MAX = 1 << 20
NAP_SECONDS_MIN, NAP_SECONDS_MAX = 0.001, 0.25
NAP_SHARE = 64
"""A nap is this part of the time waited so far, so that little of it is lost."""

PATIENCE_SECONDS, PATIENCE_TIMES = 120.0, 20
"""Others may take so long, or so many times what this task has worked until it came."""


class Meeting:
    """The meetings of one task of a round, one after another.

    ``name`` is what the names of their files have in common, ``own`` that of this attempt alone;
    ``number`` is one of ``tasks``.
    """

    def __init__(
        self,
        directory: Path,
        name: str,
        own: str,
        number: int,
        tasks: int,
        files: FileSystem,
        clock: Clock,
        waiting: Callable[[], None],
    ) -> None:
        """Begin; ``waiting`` is called before each nap, and may raise to end it."""
        self._directory = directory
        self._name = name
        self._own = own
        self._number = number
        self._tasks = tasks
        self._files = files
        self._clock = clock
        self._waiting = waiting
        self._begun = clock.seconds()
        self._held = 0

    def meet(self, word: str) -> Sequence[str]:
        """Say ``word`` and return everybody's, in the order of their numbers.

        UnavailableError when somebody does not come; OSError when the disk refuses.
        """
        self._say(word)
        held, self._held = self._held, self._held + 1
        names = [self._file(held, number) for number in range(self._tasks)]
        self._wait_for(set(names))
        return [
            self._files.read_bytes(self._directory / name, WORD_BYTES_MAX).decode()
            for name in names
        ]

    def _say(self, word: str) -> None:
        name = self._file(self._held, self._number)
        unsaid = self._directory / staged_name(0, LOG, f"{self._own}u")
        handle = self._files.open_write(unsaid, append=True)
        try:
            handle.write(word.encode())
        finally:
            handle.close()
        self._files.rename(unsaid, self._directory / name)

    def _wait_for(self, names: set[str]) -> None:
        came = self._clock.seconds()
        patience = max(PATIENCE_SECONDS, PATIENCE_TIMES * (came - self._begun))
        # A listing, and not a question for each: hosts remember what was not there.
        while not names.issubset(self._files.listdir(self._directory)):
            waited = self._clock.seconds() - came
            if waited > patience:
                raise UnavailableError(
                    "a task of this round did not come to where the others wait. "
                    f"path={self._directory} waited_seconds={waited:.0f}"
                )
            self._waiting()
            self._clock.sleep(min(max(waited / NAP_SHARE, NAP_SECONDS_MIN), NAP_SECONDS_MAX))

    def _file(self, held: int, number: int) -> str:
        return staged_name(0, LOG, f"{self._name}m{held}r{number}")
