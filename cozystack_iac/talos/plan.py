"""What a plan shows of the machines' configurations: who changes, in what, and whether that takes a reboot. Pure.

Machines that change in the same way are shown together, so that a hundred new workers are one block and not a hundred.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from cozystack_iac.talos.documents.diff import Change, Documents, changes
from cozystack_iac.yaml_text import BadYaml, Document, parse

MOST_MACHINES = 20  # with lines of their own; the others are counted


def of_machines(
    before: Mapping[str, str],
    after: Mapping[str, str],
    *,
    roles: Mapping[str, str],
    complete: tuple[Mapping[str, str], Mapping[str, str]] | None = None,
) -> str:
    """The plan for people; empty when nothing changes.

    `before` and `after` are the plain documents by machine, `complete` the secret configurations where both are known;
    `roles` groups machines and gives their order. Documents that cannot be read count as changed altogether.
    """
    whole = (_read(complete[0]), _read(complete[1])) if complete else None
    found = changes(_read(before), _read(after), complete=whole)
    # The engine hands mappings over in any order; `roles` has the inventory's.
    return as_text({name: found[name] for name in dict.fromkeys((*roles, *found)) if name in found}, roles)


def as_text(found: Mapping[str, Change], roles: Mapping[str, str]) -> str:
    """One block per kind of machine and effect: what all of them share, then what each has of its own."""
    groups: dict[tuple[str, str], dict[str, Change]] = defaultdict(dict)
    for name, change in found.items():
        groups[roles.get(name, ""), change.effect][name] = change
    blocks = (_block(role, effect, members) for (role, effect), members in groups.items())
    return "\n".join(line for block in blocks for line in block)


def _block(role: str, effect: str, members: Mapping[str, Change]) -> Iterator[str]:
    names = list(members)
    title = f"{_listed(names)} ({role})" if role else _listed(names)
    yield f"{title}  {effect}"
    shared = set.intersection(*(set(change.lines) for change in members.values()))
    yield from (f"  {line}" for line in members[names[0]].lines if line in shared)
    own = {name: [line for line in change.lines if line not in shared] for name, change in members.items()}
    with_own = [name for name in names if own[name]]
    for name in with_own[:MOST_MACHINES]:
        yield f"  only {name}"
        yield from (f"    {line}" for line in own[name])
    if len(with_own) > MOST_MACHINES:
        yield f"  and {len(with_own) - MOST_MACHINES} more machines with changes of their own"


def _listed(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _read(texts: Mapping[str, str]) -> Documents:
    return {name: tuple(_documents(text)) for name, text in texts.items()}


def _documents(text: str) -> Iterable[Document]:
    try:
        return parse(text)
    except BadYaml:
        return ()
