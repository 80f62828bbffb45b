"""What is built from source, how, and how long that takes. Pure: nothing here runs or writes anything.

The versions of the modules live in `modules/<name>/go.mod`, with their checksums in `go.sum` beside it; a recipe adds
what the Go command needs to know on top.
"""

import hashlib
import json
import platform
import re
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from packaging.version import Version

MODULES = Path(__file__).parent / "modules"

GO_FLAGS = ("-buildvcs=false", "-trimpath")
_STRIP = "-s -w"


@dataclass(frozen=True)
class Recipe:
    """One call of the Go compiler.

    `expected_s` is wall time with an empty build cache on two idle cores (measured in this order; the later ones gain from
    the build cache of the earlier); `scratch_gb` is what the build cache grows by.
    """

    name: str
    version: str
    binaries: tuple[str, ...]
    packages: tuple[str, ...]
    expected_s: int
    scratch_gb: float
    stamps: tuple[tuple[str, str], ...] = ()
    embed_from: str = ""
    embed: tuple[str, ...] = ()

    @property
    def module(self) -> Path:
        return MODULES / self.name

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def ldflags(self) -> str:
        return " ".join([_STRIP, *(f"-X {variable}={value}" for variable, value in self.stamps)])

    def key(self) -> str:
        """12 hex digits that change with the module's files, the recipe, or the kind of machine."""
        digest = hashlib.sha256()
        how = {name: value for name, value in asdict(self).items() if name not in ("expected_s", "scratch_gb")}
        how |= {"flags": GO_FLAGS, "ldflags": self.ldflags, "machine": [sys.platform, platform.machine()]}
        digest.update(json.dumps(how, sort_keys=True).encode())
        for path in sorted(self.module.iterdir()):
            content = path.read_bytes()
            digest.update(f"\0{path.name}\0{len(content)}\0".encode() + content)
        return digest.hexdigest()[:12]

    def go_version(self) -> Version:
        """The lowest Go that may build this module: its `go` line."""
        found = re.search(r"^go (\S+)$", (self.module / "go.mod").read_text(), re.MULTILINE)
        if found is None:
            raise ValueError(f"{self.module / 'go.mod'} has no go line")
        return Version(found[1])


_K8S = "k8s.io/component-base/version"

PULUMI = Recipe(
    name="pulumi",
    version="3.276.0",
    binaries=("pulumi",),
    packages=("github.com/pulumi/pulumi/pkg/v3/cmd/pulumi",),
    # Without it the engine has no version: the Automation API refuses it and `requiredPulumiVersion` is skipped.
    stamps=(("github.com/pulumi/pulumi/sdk/v3/go/common/version.Version", "v3.276.0"),),
    expected_s=220,
    scratch_gb=2.5,
)

KUBERNETES = Recipe(
    name="kubernetes",
    version="1.36.3",
    binaries=("kube-apiserver", "kube-controller-manager", "kube-scheduler"),
    packages=tuple(
        f"k8s.io/kubernetes/cmd/{name}" for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
    ),
    stamps=(
        (f"{_K8S}.gitVersion", "v1.36.3"),
        (f"{_K8S}.gitMajor", "1"),
        (f"{_K8S}.gitMinor", "36"),
        # A module has no commit to name; what it was built from is the nearest truth.
        (f"{_K8S}.gitCommit", "k8s.io/kubernetes@v1.36.3"),
        (f"{_K8S}.gitTreeState", "clean"),
    ),
    expected_s=255,
    scratch_gb=2.5,
)

ETCD = Recipe(
    name="etcd",
    version="3.7.3",
    binaries=("etcd",),
    packages=("go.etcd.io/etcd/server/v3",),
    expected_s=15,
    scratch_gb=0.3,
)

KWOK = Recipe(
    name="kwok",
    version="0.8.0",
    binaries=("kwok",),
    packages=("sigs.k8s.io/kwok/cmd/kwok",),
    expected_s=70,
    scratch_gb=0.7,
)

KUBERNETES_PLUGIN_SOURCE = "4.25.0"
KUBERNETES_PLUGIN = Recipe(
    name="pulumi-resource-kubernetes",
    version=f"4.34.2+source.{KUBERNETES_PLUGIN_SOURCE}",
    binaries=("pulumi-resource-kubernetes",),
    packages=(".",),
    # As a Go module only one commit can be had, of 4.25.0. The version says so in its build metadata, which semantic
    # versioning does not compare, so the engine does not warn at every start that the SDK asks for a newer one.
    stamps=(("main.version", f"4.34.2+source.{KUBERNETES_PLUGIN_SOURCE}"),),
    embed_from="github.com/pulumi/pulumi-kubernetes/provider/v4",
    embed=("cmd/pulumi-resource-kubernetes/schema.json", "cmd/pulumi-resource-kubernetes/terraform-mapping.json"),
    expected_s=440,
    scratch_gb=3.5,
)

RECIPES: tuple[Recipe, ...] = (PULUMI, KUBERNETES, ETCD, KWOK, KUBERNETES_PLUGIN)
"""In build order: what everything else needs first, the longest last."""


def go_needed(recipes: Iterable[Recipe] = RECIPES) -> Version:
    """The lowest Go that builds all of `recipes`."""
    return max(recipe.go_version() for recipe in recipes)
