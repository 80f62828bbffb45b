"""Machine-config documents as pure functions per Talos minor version.

`patches` is everything that is not secret and known before any machine answers, so that the first preview shows and judges
it; `secret_patches` is the rest. The generated base, which holds the cluster's secrets, is merged with both.
"""

from __future__ import annotations

from cozystack_iac.settings import Node, Site
from cozystack_iac.talos.documents import classic, multidoc, registries
from cozystack_iac.talos.documents.subject import MULTIDOC_ALL, Subject, UnsupportedTalos, document, minor_of
from cozystack_iac.yaml_text import Document, emit, parse

__all__ = [
    "Document",
    "UnsupportedTalos",
    "config_patches",
    "emit",
    "minor_of",
    "own_patches",
    "parse",
    "patches",
    "secret_patches",
    "user_patches",
]


def patches(site: Site, node: Node) -> tuple[Document, ...]:
    """Everything merged over the machine's generated configuration, in order; the user's documents come last.

    Raises UnsupportedTalos when the site's Talos version is not in `releases.TALOS_MINORS`.
    """
    return (*own_patches(site, node), *user_patches(site, node))


def own_patches(site: Site, node: Node) -> tuple[Document, ...]:
    """What Cozystack and the inventory ask for, without the user's documents. Each document appears once."""
    subject = Subject.of(site, node)
    made = multidoc.patches(subject) if subject.minor >= MULTIDOC_ALL else classic.patches(subject)
    roots = site.network.proxy.trusted_roots
    if roots:
        made.append(document("TrustedRootsConfig", name="site", certificates=roots))
    return tuple(made)


def user_patches(site: Site, node: Node) -> tuple[Document, ...]:
    """The user's documents: the site's, then the machine's."""
    return (*site.talos.patches, *node.patches)


def secret_patches(site: Site, node: Node) -> tuple[Document, ...]:
    """SECRET: registry credentials. Never print it, and wrap it in a Pulumi secret. Raises UnsupportedTalos."""
    return tuple(registries.credentials(site, Subject.of(site, node).minor))


def config_patches(site: Site, node: Node) -> tuple[str, ...]:
    """`patches` as texts for `getConfiguration`: ours in one, the user's each alone, since one patch up to 1.13 may name a
    document only once."""
    return emit(own_patches(site, node)), *(emit([one]) for one in user_patches(site, node))
