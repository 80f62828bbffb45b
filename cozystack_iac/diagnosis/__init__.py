"""What a symptom means and what to do about it: signs in, known failures out. Pure.

`explain` knows one symptom and is what a wait judges by; `recognise` has the evidence of a whole cluster before it. What is not
known gets no invented cause.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from cozystack_iac.diagnosis.known import KnownFailure, Match, Project, known_failures
from cozystack_iac.diagnosis.signs import Evidence, Kind, Sign

SHOWN = 6  # known failures in one message
_ARTIFACTS = ("PackageSource ", "ArtifactGenerator ", "ExternalArtifact ", "OCIRepository ")
# What everything else stands on: trouble there may explain a release in any namespace, trouble elsewhere may not.
_FOUNDATIONS = frozenset({Kind.NODE, Kind.API, Kind.CLASS, Kind.WEBHOOK})
_BELOW_ALL = frozenset(
    {"cozy-system", "cozy-fluxcd", "cozy-cilium", "cozy-kubeovn", "cozy-cert-manager", "kube-system"}
)


@dataclass(frozen=True)
class Diagnosis:
    """One known failure. `transient`: normal while other releases still make progress, a problem once nothing moves.

    `remedy` ends with the commands, in backticks. `sign`: where it was seen.
    """

    cause: str
    remedy: str
    transient: bool = False
    id: str = ""
    links: tuple[str, ...] = ()
    project: Project = "cozystack"
    sign: Sign | None = None

    def __str__(self) -> str:
        seen = [f"seen in {self.sign}"[:300]] if self.sign else []
        more = [f"more: {', '.join(self.links)}"] if self.links else []
        return "\n".join([f"{self.cause}", f"fix: {self.remedy}", *seen, *more])


@lru_cache(maxsize=1024)  # a wait asks the same of the same symptom at every look
def explain(subject: str, reason: str, message: str) -> Diagnosis | None:
    """The known failure behind one symptom, or None. `subject`: "namespace/name" of a release, or "Package name"."""
    sign = Sign(_kind(subject), subject, reason, message)
    for failure in known_failures():
        if not failure.also and (found := _first(failure.signs, (sign,))):
            return _diagnosis(failure, *found)
    return None


def explain_sign(*signs: Sign) -> Diagnosis | None:
    """The known failure behind the first of `signs` that shows one: the deepest stands first."""
    for sign in signs:
        for failure in known_failures():
            if not failure.also and (found := _first(failure.signs, (sign,))):
                return _diagnosis(failure, *found)
    return None


def diagnose(evidence: Evidence) -> Diagnosis | None:
    """What the evidence says about the first of its subjects: in its own signs, and in those of its namespace."""
    own = Evidence(evidence.signs, evidence.about[:1]).near()
    return next(_fitting(own, evidence), None)


def recognise(evidence: Evidence) -> tuple[Diagnosis, ...]:
    """Every known failure to be seen: around the subjects first, then in what everything stands on, then elsewhere."""
    near = evidence.near()
    below = tuple(s for s in evidence.signs if s.kind in _FOUNDATIONS or s.namespace in _BELOW_ALL)
    found: dict[str, Diagnosis] = {}
    for signs in (near, below, evidence.signs):
        for diagnosis in _fitting(signs, evidence):
            found.setdefault(diagnosis.id, diagnosis)
    return tuple(found.values())


def account(evidence: Evidence) -> dict[str, str]:
    """Rows for a failure message that has a row for each subject already: what else is known, then the evidence itself."""
    first = diagnose(evidence)
    told = {first.id} if first else set()
    told |= {d.id for d in recognise(evidence) if d.sign is not None and d.sign.subject in evidence.about}
    links = {"more": ", ".join(first.links)} if first and first.links else {}
    return {**links, **rows(evidence, without=told), **evidence.details()}


def rows(evidence: Evidence, *, without: Collection[str] = ()) -> dict[str, str]:
    """The known failures to be seen, by what people call them."""
    found = [d for d in recognise(evidence) if d.id not in without]
    return {d.id.replace("-", " "): str(d) for d in found[:SHOWN]}


# Waiting for another, or being at work, is no failure of one's own, whatever words come with it.
_WAITING = frozenset({"DependencyNotReady", "DependenciesNotReady", "NoCondition"})
_AT_WORK = frozenset({"Progressing", "ProgressingWithRetry"})


def _fitting(near: Iterable[Sign], evidence: Evidence) -> Iterator[Diagnosis]:
    signs = tuple(sign for sign in near if not _is_at_work(sign))
    for failure in known_failures():
        if not failure.cozystack.holds(evidence.versions.get("cozystack", "")):
            continue
        if not failure.kubernetes.holds(evidence.versions.get("kubernetes", "")):
            continue
        if all(_first((match,), evidence.signs) for match in failure.also) and (found := _first(failure.signs, signs)):
            yield _diagnosis(failure, *found)


def _is_at_work(sign: Sign) -> bool:
    return sign.reason in _WAITING or (sign.kind is Kind.RELEASE and sign.reason in _AT_WORK)


def _first(matches: Iterable[Match], signs: Iterable[Sign]) -> tuple[Sign, Mapping[str, str]] | None:
    """The first sign that any of `matches` fits, and the words it captured."""
    rows = tuple(matches)
    for sign in signs:
        for match in rows:
            if (read := match.read(sign)) is not None:
                return sign, {key: value or "" for key, value in read.groupdict().items()}
    return None


def _diagnosis(failure: KnownFailure, sign: Sign, words: Mapping[str, str]) -> Diagnosis:
    bare = sign.subject
    for prefix in ("Package ", *_ARTIFACTS):
        bare = bare.removeprefix(prefix)
    namespace, _, rest = bare.partition("/") if "/" in bare else ("", "", bare)
    places = {"subject": bare, "ns": namespace or "cozy-system", "name": rest.partition("/")[0], **words}

    def filled(text: str) -> str:
        for key, value in places.items():
            text = text.replace(f"{{{key}}}", value)
        return text

    commands = ", ".join(f"`{filled(command)}`" for command in failure.commands)
    remedy = filled(failure.remedy) + (f": {commands}" if commands else "")
    return Diagnosis(filled(failure.cause), remedy, failure.transient, failure.id, failure.links, failure.project, sign)


def _kind(subject: str) -> Kind:
    if subject.startswith("Package "):
        return Kind.PACKAGE
    return Kind.ARTIFACT if subject.startswith(_ARTIFACTS) else Kind.RELEASE
