"""The text of an issue, ready to paste, for the upstream project that the evidence points at. Pure; nothing is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cozystack_iac.diagnosis import Diagnosis
from cozystack_iac.diagnosis.known import Project
from cozystack_iac.diagnosis.signs import Evidence, Kind, Sign

QUOTED = 12  # signs in an issue; the archive has all
LONGEST = 400

_TRACKERS: Mapping[Project, str] = {
    "cozystack": "https://github.com/cozystack/cozystack/issues/new",
    "talos": "https://github.com/siderolabs/talos/issues/new",
    "piraeus-operator": "https://github.com/piraeusdatastore/piraeus-operator/issues/new",
    "cozystack-iac": "the issue tracker of cozystack-iac, this project",
}
# Stages whose failure is about the machines or about storage, when nothing better is known.
_BY_STAGE: Mapping[str, Project] = {
    "NodesRegistered": "talos",
    "LinstorReady": "piraeus-operator",
    "PoolsRegistered": "piraeus-operator",
}
_BY_NAMESPACE: Mapping[str, Project] = {"cozy-linstor": "piraeus-operator"}


def project(stage: str, failure: str, found: Sequence[Diagnosis], evidence: Evidence) -> Project:
    """Whom it concerns: what was recognised decides, then where it happened, then which stage failed."""
    if failure.startswith("unexpected"):
        return "cozystack-iac"
    if found:
        return found[0].project
    if evidence.about:
        namespace = evidence.about[0].partition("/")[0]
        return _BY_NAMESPACE.get(namespace, "cozystack")
    return _BY_STAGE.get(stage, "cozystack")


def text(stage: str, failure: str, found: Sequence[Diagnosis], evidence: Evidence) -> str:
    """Markdown: title, where to, versions, what happened, what was seen. Names of the site are still in it."""
    chosen = project(stage, failure, found, evidence)
    title = failure.strip().partition("\n")[0] or (str(evidence.near()[0])[:120] if evidence.near() else "")
    parts = [
        f"# {title or 'Cozystack does not become ready'}",
        (
            f"<!-- for {chosen}: {_TRACKERS[chosen]} . Review it before you paste it: it contains names and "
            "addresses of your site. -->"
        ),
        *_links(found),
        "## Versions",
        "\n".join(f"- {name}: {value}" for name, value in evidence.versions.items()) or "- unknown",
        "## What happened",
        _fenced(failure or "nothing failed; this was requested by hand"),
        "## Observations",
        _fenced("\n".join(_quoted(evidence)) or "no problems were seen"),
    ]
    if found:
        parts += ["## Likely cause", "\n".join(f"- {d.id}: {d.cause}" for d in found[:3])]
    if evidence.gaps:
        parts += ["## Unknown", "\n".join(f"- {what}: {why}" for what, why in evidence.gaps.items())]
    return "\n\n".join(parts) + "\n"


def _links(found: Sequence[Diagnosis]) -> list[str]:
    links = list(dict.fromkeys(link for d in found[:2] for link in d.links))
    return (
        [f"This is known upstream; please comment there instead of opening a new issue: {', '.join(links)}"]
        if links
        else []
    )


def _quoted(evidence: Evidence) -> list[str]:
    rank = {kind: n for n, kind in enumerate((Kind.RELEASE, Kind.PACKAGE, Kind.POD, Kind.LOG, Kind.EVENT))}
    near = sorted(evidence.near() or evidence.signs, key=lambda s: rank.get(s.kind, len(rank)))
    return [_line(sign) for sign in near[:QUOTED]]


def _line(sign: Sign) -> str:
    said = f"{sign.kind.value} {sign}"
    return said if len(said) <= LONGEST else f"{said[:LONGEST]}…"


def _fenced(body: str) -> str:
    fence = "````" if "```" in body else "```"
    return f"{fence}\n{body.rstrip()}\n{fence}"
