"""Loading: every mistake of form is a finding, nothing is a traceback, nothing secret is shown."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pulumi.runtime import config as pulumi_config

from cozystack_iac.findings import Verdict, as_json, as_markdown, table
from cozystack_iac.rules import verdict
from cozystack_iac.settings import load
from cozystack_iac.settings.load import Loaded, from_file, from_pulumi
from cozystack_iac.settings.reading import read
from tests.sites import changed, codes, good, judged, node


def written(folder: Path, config: dict[str, Any], name: str = "Pulumi.test.yaml") -> Path:
    """A stack file; JSON is YAML."""
    path = folder / name
    path.write_text(json.dumps({"config": {f"cozystack:{key}": value for key, value in config.items()}}))
    return path


def test_a_good_stack_file_has_nothing_to_say(tmp_path: Path) -> None:
    loaded = from_file(written(tmp_path, good()))
    assert loaded.findings == ()
    assert loaded.site is not None
    assert [node.name for node in loaded.site.nodes] == ["cp1", "cp2", "cp3"]


@pytest.mark.parametrize(
    ("path", "value", "where", "hint"),
    [
        ("cluster.varient", "talos", "cozystack:cluster.varient", "`variant`"),
        ("nodes.0.adress", "10.0.0.11", "cozystack:nodes[0].adress", "`address`"),
        ("nodes.0.pod_cidr", "x", "cozystack:nodes[0].pod_cidr", "use one of the keys here"),
        ("network.pod_cidr", "10.1.0.0/16", "cozystack:network.pod_cidr", "`podCIDR`"),
        ("network.svcCIDR", "10.1.0.0/16", "cozystack:network.svcCIDR", "`serviceCIDR`"),
        ("talos.certSANs", [], "cozystack:talos.certSANs", "`extraSans`"),
        ("protekt", True, "cozystack:protekt", "`protect`"),
        ("nodes.0.installDisk.byID", "x", "cozystack:nodes[0].installDisk.byID", "`byId`"),
        (
            "publishing.certificates.dns01.acessKeyID",
            "x",
            "cozystack:publishing.certificates.dns01.acessKeyID",
            "`accessKeyID`",
        ),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(path: str, value: object, where: str, hint: str) -> None:
    findings = [f for f in judged(changed(good(), (path, value))) if f.code == "CFG-002"]
    assert [finding.path for finding in findings] == [where]
    assert hint in findings[0].fix


def test_a_misspelt_key_is_judged_as_what_it_was_meant_to_be() -> None:
    raw = good()
    raw["nodes"][0]["adress"] = raw["nodes"][0].pop("address")
    assert judged(raw).codes - {"CRT-006"} == {"CFG-002"}


@pytest.mark.parametrize(
    ("path", "value", "hint"),
    [
        ("cluster.cozystack", 1.6, "quotes"),
        ("cluster.variant", "Talos", "`talos`"),
        ("nodes.0.role", "controlplane", "`controlPlane`"),
        ("nodes.0.role", "master", "one of: controlPlane, worker"),
        ("nodes.1", "10.0.0.12", "mapping"),
        ("nodes.0.zone", 1, "quotes"),
        ("nodes.0.dataDisks", "sdb", "list"),
        ("nodes.0.dataDisks.0", "/dev/sdb", "serial"),
        ("nodes.0.installDisk", "sda", "serial"),
        ("tenant.ingress", "yes", "true or false"),
        ("access.oidc", 1, "true or false"),
        ("waits.linstor", 20, "20m"),
        ("waits.linstor", "20 minutes", "20m"),
        ("storage.minimumSize", "50", "50GiB"),
        ("storage.layout", "raid1", "raidz1"),
        ("storage.provider", "lvm", "zfs"),
        ("checks", "on", "one of: live, offline"),
        ("allow", [{"guardrail": "STO-012", "reason": "x", "until": "soon"}], "2027-01-31"),
        ("network", [], "mapping"),
        ("network.nodeMask", "24", "without quotes"),
        ("lab", True, "mapping"),
    ],
)
def test_a_value_of_the_wrong_form_says_what_is_expected(path: str, value: object, hint: str) -> None:
    findings = [finding for finding in judged(changed(good(), (path, value))) if finding.code == "CFG-003"]
    assert len(findings) == 1
    assert hint in findings[0].fix


def test_one_bad_value_does_not_hide_the_others() -> None:
    raw = changed(good(), ("network", 7), ("nodes.1", None), ("cluster.name", "Prod"), ("talos.vip", "10.0.0.11"))
    assert {"CFG-003", "INV-008", "NET-021"} <= judged(raw).codes


def test_an_empty_value_means_the_default() -> None:
    assert judged(changed(good(), ("network.podCIDR", None), ("access", None))).codes <= {"CRT-006"}


def test_endless_anchors_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "Pulumi.test.yaml"
    path.write_text("config:\n  cozystack:nodes: &a [*a]\n")
    assert "CFG-008" in Verdict.of(from_file(path).findings).codes


def test_multiplying_anchors_are_refused(tmp_path: Path) -> None:
    lines = ["config:", "  cozystack:a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"  cozystack:a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    path = tmp_path / "Pulumi.test.yaml"
    path.write_text("\n".join(lines))
    assert "CFG-008" in Verdict.of(from_file(path).findings).codes


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("", "CFG-001"),
        ("hello", "CFG-001"),
        ("[1, 2]", "CFG-001"),
        ("config: 7", "CFG-001"),
        ("config: {}", "CFG-001"),
        ("config: {a: [}", "CFG-001"),
        ("config: {a: 1, a: 2}", "CFG-001"),
        ("config: {aws:region: eu}", "CFG-001"),
        ("config: !!python/object:os.system {}", "CFG-001"),
        ("config: {cozystack:nodes: {1: 2}}", "CFG-007"),
        ("config: {cozystack:cluster: {1: 2}}", "CFG-008"),
        ("\x00", "CFG-001"),
    ],
)
def test_a_file_that_is_no_stack_file_is_one_finding(tmp_path: Path, content: str, code: str) -> None:
    path = tmp_path / "Pulumi.test.yaml"
    path.write_text(content)
    assert code in Verdict.of(from_file(path).findings).codes


@pytest.mark.parametrize(
    ("content", "path"),
    [
        ("config: {cozystack:cluster: {name: x, 1: 2}}", "cozystack:cluster"),
        ("config: {cozystack:nodes: [{name: x, 1: 2}]}", "cozystack:nodes[0]"),
        ("config: {1: 2}", "config"),
    ],
)
def test_a_key_that_is_no_text_is_found_where_it_is(tmp_path: Path, content: str, path: str) -> None:
    file = tmp_path / "Pulumi.test.yaml"
    file.write_text(content)
    assert [finding.path for finding in from_file(file).findings if finding.code == "CFG-008"] == [path]


def test_a_key_that_is_no_text_is_found_in_the_inventory_file(tmp_path: Path) -> None:
    (tmp_path / "n.yaml").write_text("- {name: x, 1: 2}\n")
    findings = from_file(written(tmp_path, good() | {"nodes": {"file": "n.yaml"}})).findings
    assert [finding.path for finding in findings if finding.code == "CFG-008"] == ["n.yaml: [0]"]


def test_a_missing_file_is_a_finding(tmp_path: Path) -> None:
    assert [finding.code for finding in from_file(tmp_path / "none.yaml").findings] == ["CFG-001"]


def test_a_file_in_another_encoding_is_a_finding(tmp_path: Path) -> None:
    path = tmp_path / "Pulumi.test.yaml"
    path.write_bytes("config: {cozystack:cluster: {name: größe}}".encode("utf-16"))
    assert [finding.code for finding in from_file(path).findings] == ["CFG-001"]


def test_a_syntax_error_does_not_quote_the_line(tmp_path: Path) -> None:
    path = tmp_path / "Pulumi.test.yaml"
    path.write_text("config:\n  cozystack:x: {password: canary-4711, password: canary-4712}\n")
    text = table(Verdict.of(from_file(path).findings))
    assert "line 2" in text
    assert "canary" not in text


def test_other_packages_keys_are_left_alone(tmp_path: Path) -> None:
    path = written(tmp_path, good())
    document = json.loads(path.read_text())
    document["config"]["kubernetes:context"] = "x"
    path.write_text(json.dumps(document))
    assert from_file(path).findings == ()


# The inventory in a file ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sites/prod.nodes.yaml", "prod.nodes.json"])
def test_an_inventory_file_is_relative_to_the_stack_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "sites").mkdir()
    (tmp_path / name).write_text(json.dumps(good()["nodes"]))
    loaded = from_file(written(tmp_path, good() | {"nodes": {"file": name}}))
    assert loaded.site is not None
    assert len(loaded.site.nodes) == 3
    assert verdict(loaded).blocking is False


def test_findings_name_the_inventory_file(tmp_path: Path) -> None:
    (tmp_path / "prod.nodes.yaml").write_text(json.dumps([node(1, name="CP_1"), node(2, frob=1), node(3)]))
    judged_file = verdict(from_file(written(tmp_path, good() | {"nodes": {"file": "prod.nodes.yaml"}})))
    paths = {finding.code: finding.path for finding in judged_file}
    assert paths["INV-001"] == "prod.nodes.yaml: [0].name"
    assert paths["CFG-002"] == "prod.nodes.yaml: [1].frob"


@pytest.mark.parametrize(
    "nodes",
    [
        {"file": "none.yaml"},
        {"file": "."},
        {"file": 7},
        {"file": ""},
        {"file": "Pulumi.test.yaml"},
        {"file": "a.yaml", "extra": 1},
        {"flie": "a.yaml"},
        {},
        {"file": "bad\x00name"},
    ],
)
def test_an_inventory_that_cannot_be_read_is_one_finding(tmp_path: Path, nodes: dict[str, Any]) -> None:
    findings = from_file(written(tmp_path, good() | {"nodes": nodes})).findings
    assert "CFG-007" in {finding.code for finding in findings}


def test_no_conclusions_are_drawn_from_a_missing_inventory(tmp_path: Path) -> None:
    judged_file = verdict(from_file(written(tmp_path, good() | {"nodes": {"file": "none.yaml"}})))
    assert codes(judged_file) == ["CFG-007"]


# Size -------------------------------------------------------------------------------------------------------------------


def sized(nodes: int) -> dict[str, Any]:
    inventory = [node(1, name=f"node-{n:04}", address=f"10.{n // 250}.1.{n % 250 + 1}") for n in range(nodes)]
    return good() | {"nodes": inventory}


@pytest.mark.parametrize(("nodes", "severity"), [(100, None), (560, "warning"), (1000, "error")])
def test_a_large_inventory_is_told_the_way_out(tmp_path: Path, nodes: int, severity: str | None) -> None:
    findings = [finding for finding in from_file(written(tmp_path, sized(nodes))).findings if finding.code == "CFG-006"]
    assert [finding.severity for finding in findings] == ([severity] if severity else [])
    assert all("file" in finding.fix for finding in findings)


def test_a_large_inventory_in_a_file_is_fine(tmp_path: Path) -> None:
    (tmp_path / "n.json").write_text(json.dumps(sized(1000)["nodes"]))
    loaded = from_file(written(tmp_path, good() | {"nodes": {"file": "n.json"}}))
    assert loaded.findings == ()
    assert loaded.site is not None
    assert len(loaded.site.nodes) == 1000


# Secrets ----------------------------------------------------------------------------------------------------------------

SEALED = {"secure": "v1:canary-blob"}


@pytest.mark.parametrize(
    "path", ["network.registries.config.r.auth.password", "nodes.0.address", "talos.vip", "network", "nodes"]
)
def test_an_encrypted_value_is_not_judged_and_not_shown(path: str) -> None:
    raw = changed(
        good(),
        ("network.registries", {"config": {"r": {"auth": {"username": "joe", "password": "x"}}}}),
        (path, SEALED),
    )
    result = judged(raw)
    assert not result.blocking
    assert "CFG-005" in result.codes
    assert all("canary" not in render(result) for render in (table, as_json, as_markdown))


def test_a_credential_of_the_wrong_form_is_not_shown() -> None:
    raw = changed(
        good(), ("network.registries", {"config": {"r": {"auth": {"username": "joe", "password": 47114711}}}})
    )
    assert "47114711" not in table(judged(raw))


def test_a_proxy_with_a_password_is_not_shown() -> None:
    raw = changed(good(), ("network.proxy", {"https": "ftp://joe:canary-4711@proxy.example.org"}))
    assert "REG-004" in judged(raw).codes
    assert "canary" not in table(judged(raw))


@contextmanager
def configured(monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], secret_keys: list[str]) -> Iterator[None]:
    """The engine's way: texts, structured values as JSON."""
    texts = {
        f"cozystack:{key}": value if isinstance(value, str) else json.dumps(value) for key, value in config.items()
    }
    monkeypatch.setenv("PULUMI_CONFIG", json.dumps(texts))
    monkeypatch.setenv("PULUMI_CONFIG_SECRET_KEYS", json.dumps([f"cozystack:{key}" for key in secret_keys]))
    before = pulumi_config.CONFIG.set({})
    yield
    pulumi_config.CONFIG.reset(before)


def from_engine(
    monkeypatch: pytest.MonkeyPatch, root: Path, config: dict[str, Any], secret_keys: tuple[str, ...] = ()
) -> Loaded:
    monkeypatch.setattr(load, "_root", lambda: root)
    monkeypatch.setattr(load, "_stack", lambda: "test")
    with configured(monkeypatch, config, list(secret_keys)):
        return from_pulumi()


def test_the_engine_hands_out_the_same_site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    loaded = from_engine(monkeypatch, tmp_path, good() | {"checks": "offline", "protect": True})
    assert loaded.findings == ()
    assert loaded.site == from_file(written(tmp_path, good() | {"checks": "offline", "protect": True})).site


def test_unknown_keys_of_the_engine_are_findings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    loaded = from_engine(monkeypatch, tmp_path, good() | {"frob": "1"})
    assert [finding.path for finding in loaded.findings] == ["cozystack:frob"]


def test_text_that_is_no_json_is_a_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    loaded = from_engine(monkeypatch, tmp_path, good() | {"network": "{podCIDR"})
    assert [finding.path for finding in loaded.findings] == ["cozystack:network"]


def test_only_the_encrypted_leaves_are_hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = changed(good(), ("network.podCIDR", "canary-4711"), ("network.serviceCIDR", "banana"))
    written(tmp_path, changed(config, ("network.podCIDR", SEALED)))
    text = table(verdict(from_engine(monkeypatch, tmp_path, config, ("network",))))
    assert "canary-4711" not in text
    assert "[secret]" in text
    assert "banana" in text


def test_without_the_stack_file_a_secret_key_is_hidden_as_a_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = changed(good(), ("network.podCIDR", "canary-4711"))
    text = table(verdict(from_engine(monkeypatch, tmp_path, config, ("network",))))
    assert "canary-4711" not in text


def test_reading_never_changes_what_it_was_given() -> None:
    raw = changed(good(), ("frob", 1), ("nodes.0.role", "controlplane"))
    before = json.dumps(raw)
    read(raw)
    assert json.dumps(raw) == before
