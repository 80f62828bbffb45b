"""Who is to blame when the platform's public names do not answer: the names, the way there, or the platform. Pure.

Three witnesses: what the probes saw at the addresses, what resolvers say about the names, and what the cluster knows about
itself from inside (ready endpoints of the root ingress and of the dashboard). No probe from outside can tell a closed
firewall from a dead ingress; the third witness can.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cozystack_iac.reachability.names import NameStanding
from cozystack_iac.reachability.outcomes import EndpointStanding, Reach


class Cause(StrEnum):
    """The verdict. Only the last three stop an install: names belong to the domain's owner and may follow later."""

    REACHED = "reached"
    NAMES = "DNS is wrong"
    PATH = "the path is blocked"
    PLATFORM = "the platform is down"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Inside:
    """What the cluster says about itself: ready endpoints, None where it did not say; `trouble` says why not.

    `external`: addresses the root ingress listens on; empty when it names none.
    """

    ingress: int | None = None
    dashboard: int | None = None
    external: frozenset[str] = frozenset()
    trouble: str = ""

    def __str__(self) -> str:
        counts = {"root ingress": self.ingress, "dashboard": self.dashboard}
        known = [f"{name}: {count} ready" for name, count in counts.items() if count is not None]
        listens = [f"it listens on {', '.join(sorted(self.external))}"] if self.external else []
        return "; ".join([*known, *listens, *([self.trouble] if self.trouble else [])]) or "not checked"


@dataclass(frozen=True)
class Blame:
    """The verdict in words for a person. `targets`: the cause behind each standing, in the order given."""

    cause: Cause
    headline: str
    means: str
    next_steps: tuple[str, ...]
    targets: tuple[Cause, ...]


# An answer over HTTP proves that packets arrive at the ingress, whatever it says.
_AT_THE_INGRESS = frozenset({Reach.REACHED, Reach.STARTING, Reach.ABSENT, Reach.BROKEN, Reach.MISNAMED})


def blame(standings: Sequence[EndpointStanding], names: Iterable[NameStanding], inside: Inside) -> Blame:
    """The one verdict, and every problem behind it."""
    lives = bool(inside.ingress) or any(s.reach in _AT_THE_INGRESS for s in standings)
    targets = tuple(_behind(standing, inside, lives) for standing in standings)
    wrong = [name for name in names if not name.ok]
    cause = _worst(targets) if targets else Cause.UNKNOWN
    if cause is Cause.REACHED and wrong:
        cause = Cause.NAMES
    failed = [standing for standing in standings if not standing.ok]
    steps = [*_first_steps(cause, inside), *(s.remedy for s in failed), *_not_listening(failed, inside)]
    steps += [name.remedy for name in wrong]
    return Blame(
        cause,
        _headline(cause, failed, len(standings)),
        _means(cause, inside),
        tuple(dict.fromkeys(step for step in steps if step)),
        targets,
    )


def _worst(causes: Sequence[Cause]) -> Cause:
    return next(c for c in (Cause.PLATFORM, Cause.PATH, Cause.UNKNOWN, Cause.REACHED) if c in causes)


def _behind(standing: EndpointStanding, inside: Inside, lives: bool) -> Cause:
    match standing.reach:
        case Reach.REACHED:
            return Cause.REACHED
        case Reach.STARTING | Reach.ABSENT | Reach.BROKEN | Reach.MISNAMED:
            return Cause.PLATFORM
        case Reach.PROXY:
            return Cause.PATH
        case Reach.REFUSED | Reach.UNREACHABLE | Reach.TLS:
            if lives:
                return Cause.PATH
            return Cause.PLATFORM if inside.ingress == 0 else Cause.UNKNOWN


def _headline(cause: Cause, failed: Sequence[EndpointStanding], total: int) -> str:
    count = f"{len(failed)} of {total} probes failed"
    match cause:
        case Cause.REACHED:
            return "The platform responds on its public names."
        case Cause.NAMES:
            return "DNS is wrong: the platform responds at its addresses, but its names do not resolve to them."
        case Cause.PATH:
            return f"The path to the platform is blocked ({count})."
        case Cause.PLATFORM:
            return f"The platform does not respond behind its public names ({count})."
        case Cause.UNKNOWN if total == 0:
            return "No address of the platform is known yet."
        case Cause.UNKNOWN:
            return f"The platform is not reachable, and the cause is unknown ({count})."


def _means(cause: Cause, inside: Inside) -> str:
    match cause:
        case Cause.REACHED:
            return ""
        case Cause.NAMES:
            return "nobody can open the platform by name until the DNS records are correct; the platform itself is fine"
        case Cause.PATH:
            return "the platform itself is up, but users cannot reach it at these addresses"
        case Cause.PLATFORM if inside.ingress == 0:
            return "the root ingress has no ready endpoint, so nothing responds at any address"
        case Cause.PLATFORM:
            return "packets reach the ingress, but the backend does not respond as expected"
        case Cause.UNKNOWN:
            return (
                "a blocked path and a dead ingress look the same from here, and the cluster did not report which it is"
            )


def _first_steps(cause: Cause, inside: Inside) -> list[str]:
    match cause:
        case Cause.PLATFORM if inside.ingress == 0:
            return ["check the root ingress: `kubectl -n tenant-root get pods,helmreleases`"]
        case Cause.UNKNOWN:
            return [
                (
                    "check its endpoints: `kubectl -n tenant-root get endpointslices -l "
                    "kubernetes.io/service-name=root-ingress-controller`"
                )
            ]
        case _:
            return []


def _not_listening(failed: Iterable[EndpointStanding], inside: Inside) -> list[str]:
    """The root ingress names its addresses, and some that were probed are not among them."""
    missing = sorted({str(s.target.address) for s in failed} - inside.external) if inside.external else []
    if not missing:
        return []
    return [f"correct publishing.externalIPs: the root ingress does not listen on {', '.join(missing)}"]
