"""What the platform made of its values: the Secret it renders for all its parts, compared with what was asked. Pure.

Secret cozy-system/cozystack-values holds one text, `values.yaml`, whose `_cluster` every chart of the platform reads
(packages/core/platform/templates/apps.yaml). It is the first place where a value that was overruled or misread shows.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from cozystack_iac.kube.client import Ref
from cozystack_iac.platform.claim import LEGACY
from cozystack_iac.releases import RENDERED_KEYS, Release

SECRETS = Ref("v1", "secrets", "cozy-system")
SECRET = SECRETS.named("cozystack-values")
RELEASES = ("cozy-system/cozystack-platform",)  # what renders it
WATCHED = "reconcile.fluxcd.io/watch=Enabled"  # label of that Secret in 1.3 to 1.6


class Unreadable(ValueError):
    """The Secret is there and does not say what it should; its content is never quoted."""


@dataclass(frozen=True)
class Difference:
    """One value that arrived as something else. `seen` is None when it is not rendered at all."""

    key: str
    wanted: str
    seen: str | None

    def __str__(self) -> str:
        seen = "nothing" if self.seen is None else f"`{self.seen}`"
        return f"set to `{self.wanted}`, but the platform uses {seen}"


def expected(values: Mapping[str, Any], variant: str, release: Release) -> dict[str, str]:
    """What `_cluster` has to say, for the values that are given; what is left to the chart is not compared."""
    found: dict[str, str] = {} if variant == "default" else {"bundle-name": variant}
    for key, (path, _) in RENDERED_KEYS.items():
        value = _at(values, path)
        if value is not None and release.renders(key):
            found[key] = text(value)
    return found


def text(value: Any) -> str:
    """A value as the template writes it: lists joined by commas, switches as words, whole numbers without a point."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(map(text, value))
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def rendered(secret: Mapping[str, Any]) -> dict[str, str]:
    """The plain texts of `_cluster` that we know; what else is in the Secret stays there. Raises Unreadable."""
    try:
        content = base64.b64decode((secret.get("data") or {})["values.yaml"]).decode()
        cluster = YAML(typ="safe", pure=True).load(content)["_cluster"]
    except (KeyError, TypeError, ValueError, binascii.Error, YAMLError):
        raise Unreadable(f"{SECRET} has no readable `_cluster` in its values.yaml") from None
    if not isinstance(cluster, dict):
        raise Unreadable(f"`_cluster` in {SECRET} is not a mapping")
    return {key: text(value) for key, value in cluster.items() if key in RENDERED_KEYS and not isinstance(value, dict)}


def differences(wanted: Mapping[str, str], seen: Mapping[str, str]) -> list[Difference]:
    """Every value that is not what was asked for, by key."""
    return [Difference(key, value, seen.get(key)) for key, value in sorted(wanted.items()) if seen.get(key) != value]


def hint(found: list[Difference]) -> str:
    """What to do about them."""
    if any(difference.key == "root-host" and difference.seen for difference in found):
        return (
            f"an old ConfigMap may override the package: check `kubectl -n {LEGACY.namespace} get configmap "
            f"{LEGACY.name} -o yaml`"
        )
    return (
        "check `kubectl -n cozy-system get helmrelease cozystack-platform -o yaml`, which provides the "
        "platform's values"
    )


def _at(values: Mapping[str, Any], path: str) -> Any:
    found: Any = values
    for step in path.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(step)
    return found
