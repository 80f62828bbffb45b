"""The command stand-in: shapes of the official plugin, streams, secrets, previews, cancellation, remote commands."""

import asyncio
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import pytest
from pulumi.provider.experimental import provider as api
from pulumi.provider.experimental.property_value import PropertyValue

from lab.plugins.command import __main__ as plugin
from lab.plugins.command import process, provider, remote
from lab.plugins.values import UNKNOWN, Secret, plain_all, wire_all

URN = "urn:pulumi:dev::cozystack::{}::name"


def _open(value: Any) -> Any:
    if isinstance(value, Mapping):
        return Secret(_open(value["$secret"])) if "$secret" in value else {k: _open(v) for k, v in value.items()}
    return [_open(item) for item in value] if isinstance(value, list) else value


async def _create(given: Mapping[str, Any], kind: str = provider.LOCAL, *, preview: bool = False) -> dict[str, Any]:
    request = api.CreateRequest(URN.format(kind), wire_all(given), 0, preview)
    return plain_all((await provider.CommandProvider().create(request)).properties)


def test_the_version_is_the_installed_sdks() -> None:
    assert version("pulumi-command") == plugin.VERSION


async def test_commands_answer_as_recorded(vectors: Path) -> None:
    recorded = json.loads((vectors / "pulumi-plugins" / "command.json").read_text())
    for case in recorded:
        name = case["id"][:-8]
        urn = f"urn:pulumi:dev::cozystack::{case['type']}::{name}"
        request = api.CreateRequest(urn, wire_all(_open(case["inputs"])), 0, False)
        response = await provider.CommandProvider().create(request)
        assert response.properties == wire_all(_open(case["outputs"])), case["id"]
        assert response.resource_id is not None and response.resource_id.startswith(name)
        assert len(response.resource_id) == len(case["id"])
    assert len(recorded) >= 2


async def test_a_failure_tells_status_command_and_both_streams() -> None:
    with pytest.raises(process.Failed) as failed:
        await _create({"create": "echo out; echo err >&2; exit 3"})
    message = str(failed.value)
    assert message.startswith('exit status 3: running "echo out; echo err >&2; exit 3":\n')
    assert "out\n" in message and "err\n" in message


async def test_a_missing_interpreter_is_named() -> None:
    with pytest.raises(process.Failed, match="cannot start /no/such/shell"):
        await _create({"create": "true", "interpreter": ["/no/such/shell"]})


async def test_directory_interpreter_and_one_trailing_newline(tmp_path: Path) -> None:
    made = await _create({"create": "pwd; echo", "dir": str(tmp_path)})
    assert made["stdout"] == f"{tmp_path}\n"
    made = await _create({"create": "print(6 * 7)", "interpreter": ["python3", "-c"]})
    assert made["stdout"] == "42"


async def test_nothing_runs_in_a_preview(tmp_path: Path) -> None:
    made = await _create({"create": f"touch {tmp_path}/ran"}, preview=True)
    assert made["stdout"] is UNKNOWN and made["stderr"] is UNKNOWN
    assert not (tmp_path / "ran").exists()


async def test_update_and_delete_see_the_previous_output() -> None:
    command = provider.CommandProvider()
    given = {"create": "echo one", "update": 'echo "$PULUMI_COMMAND_STDOUT two"'}
    old = (await command.create(api.CreateRequest(URN.format(provider.LOCAL), wire_all(given), 0, False))).properties
    update = api.UpdateRequest(URN.format(provider.LOCAL), "x", old, wire_all(given), 0, [], False)
    new = (await command.update(update)).properties
    assert plain_all(new)["stdout"] == "one two"
    silent = wire_all(given | {"addPreviousOutputInEnv": False})
    update = api.UpdateRequest(URN.format(provider.LOCAL), "x", old, silent, 0, [], False)
    assert plain_all((await command.update(update)).properties)["stdout"] == " two"


async def test_delete_runs_with_the_inputs_of_the_state(tmp_path: Path) -> None:
    state = wire_all({"delete": f'echo "$A $PULUMI_COMMAND_STDOUT" > {tmp_path}/gone', "environment": {"A": "b"}})
    state |= wire_all({"stdout": "made"})
    nested = f"cozystack:index:CozystackCluster${provider.LOCAL}"
    await provider.CommandProvider().delete(api.DeleteRequest(URN.format(nested), "x", state, 0))
    assert (tmp_path / "gone").read_text() == "b made\n"


async def test_without_a_command_only_state_is_made() -> None:
    assert await _create({"delete": "false"}) == {"delete": "false", "stdout": "", "stderr": ""}


async def test_changed_triggers_replace_and_other_changes_update() -> None:
    async def diff(old: dict[str, Any], new: dict[str, Any]) -> api.DiffResponse:
        request = api.DiffRequest(URN.format(provider.LOCAL), "x", wire_all(old), wire_all(new), [])
        return await provider.CommandProvider().diff(request)

    state = {"create": "true", "triggers": [1, "a"], "stdout": "", "stderr": ""}
    assert not (await diff(state, {"create": "true", "triggers": [1, "a"]})).changes
    replaced = await diff(state, {"create": "true", "triggers": [2, "a"], "update": "true"})
    assert replaced.replaces == ["triggers"] and replaced.diffs == ["triggers", "update"]
    updated = await diff(state, {"create": "false", "triggers": [1, "a"]})
    assert updated.changes and not updated.replaces
    dropped = await diff(state, {"triggers": [1, "a"]})
    assert dropped.diffs == ["create"]


def _ended(pid: int) -> bool:
    """Whether a process is gone, or a zombie that nobody has reaped yet."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


async def test_cancellation_ends_the_command_and_what_it_started(tmp_path: Path) -> None:
    command = provider.CommandProvider()
    create = f"sleep 60 & echo $! > {tmp_path}/pid; wait"
    request = api.CreateRequest(URN.format(provider.LOCAL), wire_all({"create": create}), 0, False)
    running = asyncio.create_task(command.create(request))
    pid_file = tmp_path / "pid"
    while not (pid_file.exists() and pid_file.read_text().strip()):
        await asyncio.sleep(0.01)
    await command.cancel()
    with pytest.raises(process.Failed, match=r"^signal: "):
        await asyncio.wait_for(running, 30)
    assert _ended(int(pid_file.read_text()))


@pytest.mark.parametrize("turns", range(4))
async def test_a_command_that_is_being_started_when_the_update_is_cancelled_ends_as_well(turns: int) -> None:
    command = provider.CommandProvider()
    request = api.CreateRequest(URN.format(provider.LOCAL), wire_all({"create": "sleep 60"}), 0, False)
    running = asyncio.create_task(command.create(request))
    for _ in range(turns):
        await asyncio.sleep(0)
    await command.cancel()
    with pytest.raises(process.Failed, match=r"^signal: "):
        await asyncio.wait_for(running, 30)


async def test_what_only_the_official_plugin_can_do_is_refused() -> None:
    async def failures(kind: str, given: dict[str, Any]) -> list[str]:
        request = api.CheckRequest(URN.format(kind), {}, wire_all(given), b"")
        return [failure.property for failure in (await provider.CommandProvider().check(request)).failures or []]

    assert await failures(provider.LOCAL, {"create": "true"}) == []
    assert await failures(provider.LOCAL, {"assetPaths": ["*"], "archivePaths": ["*"]}) == [
        "assetPaths",
        "archivePaths",
    ]
    assert await failures(provider.REMOTE, {"connection": {"host": "h", "password": "p"}}) == ["connection.password"]
    assert await failures(provider.REMOTE, {"connection": UNKNOWN}) == []
    assert await failures("command:remote:CopyToRemote", {}) == [""]


FAKE_SSH = """#!/bin/sh
echo dial >> {folder}/dials
if [ "$(wc -l < {folder}/dials)" -le {refusals} ]; then echo "connection refused" >&2; exit 255; fi
cp "$2" {folder}/config; echo "$@" > {folder}/argv; echo "$4" > {folder}/command; cat
"""


def _fake_ssh(folder: Path, monkeypatch: pytest.MonkeyPatch, refusals: int = 0) -> None:
    script = folder / "ssh"
    script.write_text(FAKE_SSH.format(folder=folder, refusals=refusals))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(remote, "REDIAL_PAUSE_S", 0.0)


async def test_a_remote_command_runs_through_ssh_without_secrets_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake_ssh(tmp_path, monkeypatch)
    connection = {"host": "10.0.0.9", "port": 2222, "user": "ubuntu", "privateKey": Secret("KEY")}
    environment = {"TOKEN": Secret("canary")}
    given = {"connection": connection, "create": "hostname", "environment": environment, "stdin": "in"}
    made = await _create(given, provider.REMOTE)
    assert made["stdout"] == "in"
    assert (tmp_path / "command").read_text() == "hostname\n"
    argv, config = (tmp_path / "argv").read_text(), (tmp_path / "config").read_text()
    assert "canary" not in argv and "KEY" not in argv
    for line in ('HostName "10.0.0.9"', 'Port "2222"', 'User "ubuntu"', 'SetEnv "TOKEN=canary"', "IdentityFile"):
        assert line in config
    assert not os.path.exists(argv.split()[1])  # noqa: PTH110, ASYNC240 # the configuration and the key are gone


async def test_dialling_again_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_ssh(tmp_path, monkeypatch, refusals=3)
    given = {"connection": {"host": "h", "dialErrorLimit": 2}, "create": "true"}
    with pytest.raises(process.Failed, match="connection refused"):
        await _create(given, provider.REMOTE)
    assert (tmp_path / "dials").read_text().count("dial") == 2
    made = await _create(given | {"connection": {"host": "h", "dialErrorLimit": -1}}, provider.REMOTE)
    assert made["stdout"] == ""


async def test_a_missing_ssh_program_is_said_clearly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(process.Failed, match="needs the ssh program"):
        await _create({"connection": {"host": "h"}, "create": "true"}, provider.REMOTE)


async def test_secret_marks_of_inputs_stay_and_outputs_are_plain() -> None:
    request = api.CreateRequest(URN.format(provider.LOCAL), wire_all({"create": "cat", "stdin": Secret("s")}), 0, False)
    properties = (await provider.CommandProvider().create(request)).properties
    assert properties["stdin"].is_secret
    assert properties["stdout"] == PropertyValue("s")


async def test_a_preview_with_unknown_inputs_can_be_sent() -> None:
    """The SDK cannot marshal its own Computed values; whatever came in unknown must go out in a form that it can."""
    unknown = {"create": PropertyValue.computed(), "environment": PropertyValue({"A": PropertyValue.computed()})}
    command, urn = provider.CommandProvider(), URN.format(provider.LOCAL)
    checked = await command.check(api.CheckRequest(urn, {}, unknown, b""))
    created = await command.create(api.CreateRequest(urn, unknown, 0, True))
    updated = await command.update(api.UpdateRequest(urn, "x", created.properties, unknown, 0, [], True))
    for properties in (checked.inputs or {}, created.properties, updated.properties):
        sent = PropertyValue.unmarshal_map(PropertyValue.marshal_map(properties))
        received = plain_all(sent)
        assert received["create"] is UNKNOWN and received["environment"] == {"A": UNKNOWN}
