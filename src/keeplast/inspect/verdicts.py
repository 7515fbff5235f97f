"""What ``verify`` answers: checks, each with a verdict and what it rests on.

*Holds* is said only of what was looked at in full. What a check could not look at makes it *cannot
be judged*, with the reason, unless something is broken; a reason is never shown as holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from keeplast.model.verdict import JudgedBy, Verdict

FINDINGS_MAX = 10
REASONS_MAX = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it must be; ``key`` None when it is about no key.

    ``where`` names the segment, object or row of a store.
    """

    problem: str
    offset: int | None = None
    key: bytes | None = None
    where: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Findings:
    """What a check has found so far: the first few, and how many in all."""

    first: list[Finding] = field(default_factory=list)
    count: int = 0
    reasons: list[str] = field(default_factory=list)

    def add(self, problem: str, *, offset: int | None = None, key: bytes | None = None) -> None:
        """Count a finding; keep it if it is one of the first."""
        self.count += 1
        if len(self.first) < FINDINGS_MAX:
            self.first.append(Finding(problem, offset, key))

    def add_at(self, problem: str, offset: int | None, where: Mapping[str, str]) -> None:
        """Keep a finding of a store, however many there are: each names what is to be restored."""
        self.count += 1
        self.first.append(Finding(problem, offset, where=where))

    def add_all(self, other: Findings) -> None:
        """Take over what another pass has found."""
        self.first = [*self.first, *other.first][:FINDINGS_MAX]
        self.count += other.count
        for reason in other.reasons:
            self.cannot_judge(reason)

    def cannot_judge(self, reason: str) -> None:
        """Remember why something was not looked at."""
        if reason not in self.reasons and len(self.reasons) < REASONS_MAX:
            self.reasons.append(reason)

    def check(self, name: str, claim: str) -> Check:
        """Return the check that rests on these findings."""
        verdict = Verdict.HOLDS
        if self.count:
            verdict = Verdict.BROKEN
        elif self.reasons:
            verdict = Verdict.UNJUDGED
        return Check(name, claim, verdict, tuple(self.first), self.count, tuple(self.reasons))


@dataclass(frozen=True, slots=True)
class Check:
    """One claim and the verdict on it; ``findings`` are the first of ``count``."""

    name: str
    claim: str
    verdict: Verdict
    findings: tuple[Finding, ...]
    count: int
    reasons: tuple[str, ...]

    def as_document(self) -> dict[str, object]:
        """Return the check as the document shows it."""
        names = ("name", "claim", "verdict", "count", "findings", "reasons")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """All checks of one partition, and facts that explain them.

    ``rounds`` are the names of the rounds that were judged, oldest first, as a receipt has them;
    ``judged_by`` says as of what, where the log has an owner.
    """

    name: str
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()
    rounds: tuple[str, ...] = ()
    judged_by: JudgedBy | None = None

    def names(self, verdict: Verdict) -> tuple[str, ...]:
        """Return the names of the checks with this verdict."""
        return tuple(check.name for check in self.checks if check.verdict is verdict)

    @property
    def check_names(self) -> tuple[str, ...]:
        """Return the names of all checks."""
        return tuple(check.name for check in self.checks)

    @property
    def verdict(self) -> Verdict:
        """Return the worst verdict of the checks: broken, then cannot be judged, then holds."""
        found = {check.verdict for check in self.checks}
        for verdict in (Verdict.BROKEN, Verdict.UNJUDGED):
            if verdict in found:
                return verdict
        return Verdict.HOLDS

    def check(self, name: str) -> Check:
        """Return the check of that name."""
        return next(check for check in self.checks if check.name == name)

    def as_document(self) -> dict[str, object]:
        """Return what the document shows."""
        return {
            "partition": self.name, "verdict": self.verdict, "checks": self.checks,
            "notes": self.notes,
        }  # fmt: skip
