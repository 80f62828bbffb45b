"""The product's rooms stand on each other in one direction, imports inside functions counted."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import cozystack_iac

PACKAGE = Path(cozystack_iac.__file__).parent
# A room may use those above it in this list, which is the order in which one reads the product. Rooms of a line are strangers.
LAYERS = (
    ("findings", "waiting", "engine_watch", "redaction", "report", "timeline", "go_yaml"),
    ("releases", "certificates", "residue", "published", "yaml_text"),
    ("settings", "kube"),
    ("talos", "record"),
    ("storage", "reachability"),
    ("rules", "membership"),
    ("platform", "diagnosis", "summary"),
    ("readiness",),
    ("stages",),
    ("components",),
    ("cluster",),
    ("runner", "__main__"),
)
HEIGHT = {room: height for height, rooms in enumerate(LAYERS) for room in rooms}
GENERATED = ("_pb2.py", "_grpc.py")
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if not path.name.endswith(GENERATED)]


def room(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """What a file imports of the product, wherever in it: `kube.client`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import hides where it leads"
            names = [f"{node.module}.{each.name}" for each in node.names]
        for name in names:
            package, _, rest = name.partition(".")
            if package == "cozystack_iac" and rest:
                yield rest


def rooms_used(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)} - {room(path)}


def test_every_room_has_its_place() -> None:
    assert {room(path) for path in FILES} - {"__init__"} == set(HEIGHT)


@pytest.mark.parametrize("name", list(HEIGHT))
def test_a_room_stands_on_lower_ones_only(name: str) -> None:
    upwards = {
        f"{path.relative_to(PACKAGE)} imports {used}"
        for path in FILES
        if room(path) == name
        for used in rooms_used(path)
        if HEIGHT[used] >= HEIGHT[name]
    }
    assert upwards == set()


def test_waits_import_nothing_of_ours_and_the_base_of_stages_no_domain() -> None:
    assert rooms_used(PACKAGE / "waiting.py") == set()
    assert rooms_used(PACKAGE / "stages" / "base.py") <= {"engine_watch", "findings", "timeline", "waiting"}


def test_stages_are_used_by_components_and_the_cluster_alone() -> None:
    users = {room(path) for path in FILES if "stages" in rooms_used(path)}
    assert users == {"components", "cluster"}


def test_a_stage_is_in_a_file_of_its_name() -> None:
    for path in sorted((PACKAGE / "stages").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        stages = [node.name for node in classes if any("StageResource[" in ast.unparse(base) for base in node.bases)]
        expected = [] if path.stem in ("__init__", "base") else ["".join(map(str.title, path.stem.split("_")))]
        assert stages == expected, path
