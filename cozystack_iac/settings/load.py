"""Reads stack files: the only place that looks at Pulumi's configuration, and the only one that opens an inventory file."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pulumi
from pulumi.runtime import config as pulumi_config
from yaml import YAMLError

from cozystack_iac import go_yaml
from cozystack_iac.findings import ERROR, WARNING, Finding, Rule, Verdict
from cozystack_iac.settings.paths import NAMESPACE, ROOT, Step, spelled
from cozystack_iac.settings.reading import Sealed, plain, read
from cozystack_iac.settings.site import Site

CFG_001 = Rule(
    "CFG-001",
    ERROR,
    title="The stack file is readable",
    why="nothing is known about the site without it",
    remedy="name a YAML stack file that has a `config:` block",
)
CFG_006 = Rule(
    "CFG-006",
    WARNING,
    title="The configuration fits into one environment variable",
    why="the engine passes the configuration in one environment variable, and Linux allows at most 128 KiB: "
    "the run would fail with `Argument list too long` before anything is checked",
    remedy="move the inventory to a separate file: `cozystack:nodes: {file: sites/<stack>.nodes.yaml}`",
)
CFG_007 = Rule(
    "CFG-007",
    ERROR,
    title="The inventory file is readable",
    why="no node is known without it",
    remedy="use a YAML or JSON file with a list of nodes; the path is relative to the stack file",
)

VARIABLE_LIMIT_BYTES = 128 * 1024  # MAX_ARG_STRLEN of Linux, for `PULUMI_CONFIG=…` and its final zero
SIZE_WARNING_BYTES = 96 * 1024
SIZE_ERROR_BYTES = 120 * 1024  # the engine's own escaping may differ a little from ours
_FILE_LIMIT_BYTES = 64 * 1024 * 1024
_SECRET_MINIMUM = 4  # shorter texts occur everywhere; replacing them would only garble what is printed


def _today() -> date:
    return datetime.now(UTC).date()


@dataclass(frozen=True, slots=True)
class Loaded:
    """A stack file as read: the site as far as it could be understood, and what is wrong with its form.

    `site` is None when nothing could be understood. When `findings` block, it is good for further judging only, not for building.
    `secrets` are texts that must not be printed.
    """

    site: Site | None
    findings: tuple[Finding, ...]
    secrets: frozenset[str] = frozenset()
    root: Path = Path()
    """The folder that names of files in it are relative to."""
    today: date = field(default_factory=_today)
    """The day it was read (UTC), which it is judged by: whoever judges looks at no clock."""


def from_pulumi() -> Loaded:
    """The running stack's configuration, every `cozystack:` key of it. Never raises for bad input."""
    values = {**pulumi_config.get_config_env(), **pulumi_config.CONFIG.get()}
    secret_keys = {*pulumi_config.get_config_secret_keys_env(), *pulumi_config._SECRET_KEYS.get()}
    root = _root()
    config = {key: _decoded(value) for key, value in values.items()}
    sealed_in_file = _sealed_places(root / f"Pulumi.{_stack()}.yaml") if secret_keys else {}
    secrets = {text for key in secret_keys for text in _secret_texts(config.get(key), sealed_in_file.get(key))}
    size = len(os.environ.get("PULUMI_CONFIG", ""))
    return _load(config, root, size_bytes=size or _variable_bytes(values), secrets=frozenset(secrets))


def from_file(path: Path | str) -> Loaded:
    """A stack file on disk, without the engine. Encrypted values stay unknown. Never raises for bad input."""
    path = Path(path)
    document = _parsed(path)
    if isinstance(document, str):
        fix = "use a stack file such as Pulumi.dev.yaml"
        return Loaded(None, (CFG_001.at(str(path), problem=document, fix=fix),))
    config = document.get("config") if isinstance(document, dict) else None
    if not isinstance(config, dict):
        problem, fix = "it has no `config:` mapping", "put the settings below `config:`"
        return Loaded(None, (CFG_001.at(str(path), problem=problem, fix=fix),))
    findings: list[Finding] = []
    values = plain(config, findings, _place)  # first of all: anchors may be endless, or multiply
    if not isinstance(values, dict):
        return Loaded(None, tuple(findings))
    decoded = {key: _decoded(value) for key, value in values.items()}
    loaded = _load(decoded, path.parent, size_bytes=_variable_bytes(decoded), secrets=frozenset())
    return replace(loaded, findings=(*findings, *loaded.findings))


def _place(steps: Sequence[Step]) -> str:
    """A place below `config:`, whose keys carry their package."""
    return spelled((str(steps[0]).removeprefix(f"{NAMESPACE}:"), *steps[1:])) if steps else "config"


def _load(config: Mapping[str, Any], root: Path, size_bytes: int, secrets: frozenset[str]) -> Loaded:
    prefix = f"{NAMESPACE}:"
    raw = {key.removeprefix(prefix): value for key, value in config.items() if key.startswith(prefix)}
    findings = list(_judge_size(size_bytes, raw))
    if not raw:
        problem = f"it has no key that starts with `{prefix}`"
        findings.append(CFG_001.at(ROOT, problem=problem, fix=f"write `{prefix}cluster`, `{prefix}nodes` and so on"))
    raw, nodes_file = _with_inventory(raw, root, findings)
    site, formal = read(raw, nodes_file)
    verdict = Verdict.of((*findings, *formal)).redacted(secrets)
    return Loaded(site, verdict.findings, secrets, root)


def _judge_size(size_bytes: int, raw: Mapping[str, Any]) -> list[Finding]:
    if size_bytes < SIZE_WARNING_BYTES:
        return []
    severity = ERROR if size_bytes >= SIZE_ERROR_BYTES else WARNING
    problem = f"the configuration has {size_bytes // 1024} KiB, but the limit is {VARIABLE_LIMIT_BYTES // 1024} KiB"
    path = f"{NAMESPACE}:nodes" if isinstance(raw.get("nodes"), list) else ROOT
    fix = "move the inventory to a separate file and write `cozystack:nodes: {file: sites/<stack>.nodes.yaml}`"
    return [CFG_006.at(path, problem=problem, fix=fix, severity=severity)]


def _with_inventory(raw: dict[str, Any], root: Path, findings: list[Finding]) -> tuple[dict[str, Any], str | None]:
    """`raw` with the nodes of the inventory file in place of its name, and that name."""
    nodes = raw.get("nodes")
    if not isinstance(nodes, dict) or set(nodes) == {"secure"}:
        return raw, None
    name = nodes.get("file")
    path = f"{NAMESPACE}:nodes.file" if "file" in nodes else f"{NAMESPACE}:nodes"
    if set(nodes) != {"file"} or not isinstance(name, str) or not name.strip():
        problem = "the inventory is neither a list of nodes nor a mapping with only `file`"
        findings.append(CFG_007.at(path, problem=problem, fix="write `cozystack:nodes: {file: sites/prod.nodes.yaml}`"))
        return {**raw, "nodes": Sealed()}, None
    document = _parsed(root / Path(name).expanduser())
    if isinstance(document, dict) and set(document) == {"nodes"}:
        document = document["nodes"]
    if not isinstance(document, list):
        problem = f"{name}: {document if isinstance(document, str) else 'it is not a list of nodes'}"
        fix = "use a YAML or JSON file with a list of nodes; the path is relative to the stack file"
        findings.append(CFG_007.at(path, problem=problem, fix=fix))
        return {**raw, "nodes": Sealed()}, None
    return {**raw, "nodes": document}, name


# Files ------------------------------------------------------------------------------------------------------------------


def _parsed(path: Path) -> Any:
    """The document in a file, or a text saying why there is none. A document that is itself text counts as none."""
    try:
        if not path.is_file():
            return "the file does not exist"
        if path.stat().st_size > _FILE_LIMIT_BYTES:
            return f"it is larger than {_FILE_LIMIT_BYTES // 1024**2} MiB"
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        return f"it cannot be read: {_reason(error)}"
    return _document(text, as_json=path.suffix == ".json")


def _document(text: str, *, as_json: bool) -> Any:
    try:
        document = json.loads(text) if as_json else go_yaml.load(text)
    except RecursionError:
        return "it is nested without end"
    except YAMLError as error:
        return f"it is not valid YAML: {_yaml_reason(error)}"
    except ValueError as error:
        return f"it cannot be parsed: {_reason(error)}"
    except Exception as error:  # noqa: BLE001 - the parser leaks internal errors on hostile input (e.g. bad tags, dates)
        return f"it cannot be parsed: {type(error).__name__}"
    return "it contains only plain text" if isinstance(document, str) else document


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    return (error.strerror or "refused") if isinstance(error, OSError) else str(error).splitlines()[0]


def _yaml_reason(error: YAMLError) -> str:
    """The parser's complaint without the line of the file it quotes: that line may hold a secret."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or "syntax error"
    problem = problem.split(" with value ", 1)[0].split("\n", 1)[0]
    return f"{problem} in line {mark.line + 1}, column {mark.column + 1}" if mark is not None else problem


# Pulumi's configuration -------------------------------------------------------------------------------------------------


def _root() -> Path:
    """The project's folder; the current one outside the engine."""
    return Path(pulumi.get_root_directory() or ".")


def _stack() -> str:
    return pulumi.get_stack()


def _decoded(value: object) -> Any:
    """Pulumi hands out texts: JSON for anything structured, `true` or `8443` for plain values."""
    if not isinstance(value, str):
        return value
    if value[:1] in {"{", "["} or value in {"true", "false"}:
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _variable_bytes(values: Mapping[str, Any]) -> int:
    """How long `PULUMI_CONFIG` gets: a JSON object of texts, structured values as JSON inside those texts."""
    texts = {
        key: value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)
        for key, value in values.items()
    }
    return len(json.dumps(texts, separators=(",", ":")))


def _sealed_places(stack_file: Path) -> dict[str, Any]:
    """The `config:` of the stack file as written, to tell which leaves of a secret key are really encrypted."""
    document = _parsed(stack_file)
    config = document.get("config") if isinstance(document, dict) else None
    return config if isinstance(config, dict) else {}


def _secret_texts(value: Any, written: Any) -> set[str]:
    """Texts inside a secret configuration value: those encrypted in the file, or all where that cannot be told."""
    if isinstance(written, dict) and set(written) != {"secure"} and isinstance(value, dict):
        return {
            text
            for key, item in value.items()
            if isinstance(written.get(key), dict | list)
            for text in _secret_texts(item, written[key])
        }
    if isinstance(written, list) and isinstance(value, list) and len(written) == len(value):
        pairs = zip(value, written, strict=True)
        return {text for item, mark in pairs if isinstance(mark, dict | list) for text in _secret_texts(item, mark)}
    return _texts(value)


def _texts(value: Any) -> set[str]:
    if isinstance(value, dict):
        return {text for item in value.values() for text in _texts(item)}
    if isinstance(value, list):
        return {text for item in value for text in _texts(item)}
    return {str(value)} if value is not None and len(str(value)) >= _SECRET_MINIMUM else set()
