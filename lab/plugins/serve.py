"""Running a stand-in plugin: clean error text, and an end together with the engine."""

from __future__ import annotations

import sys

from pulumi.provider.experimental import server
from pulumi.provider.experimental.provider import DiffResponse, PropertyDiff, PropertyDiffKind, Provider

from cozystack_iac import engine_watch


def serve(version: str, provider: Provider) -> None:
    """Serve until the engine ends the process or disappears."""
    # The SDK appends the traceback to every error it hands to the engine; without frames only the text remains.
    sys.tracebacklimit = 0
    engine_watch.begin()  # a killed engine tells nobody, and an orphaned plugin would stay for ever
    server.main(sys.argv[1:], version, provider)


def token(urn: str) -> str:
    """Return the type token of a resource, without the types of its parents that a URN puts before it."""
    return urn.split("::")[2].rpartition("$")[2]


def difference(changed: list[str], replacing: frozenset[str] = frozenset()) -> DiffResponse:
    """Return the answer to a diff: the changed properties, some of which replace the resource."""

    def kind(name: str) -> PropertyDiffKind:
        return PropertyDiffKind.UPDATE_REPLACE if name in replacing else PropertyDiffKind.UPDATE

    return DiffResponse(
        changes=bool(changed),
        replaces=[name for name in changed if name in replacing],
        diffs=changed,
        detailed_diff={name: PropertyDiff(kind(name), input_diff=True) for name in changed},
    )
