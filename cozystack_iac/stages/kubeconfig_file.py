"""The kubeconfig is in the file that the stack names, beside whatever else is there."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field

from cozystack_iac import certificates
from cozystack_iac.findings import ERROR, Finding, Rule
from cozystack_iac.kube.kubeconfig import BadKubeconfig, parse
from cozystack_iac.kube.kubeconfig_file import is_open, read, target, write
from cozystack_iac.kube.merging import Entry, holds, merged, without
from cozystack_iac.stages.base import Properties, StageProvider, StageResource
from cozystack_iac.waiting import Progress, StageFailed

_PLACE = "cozystack:access.kubeconfigFile"

RUN_010 = Rule(
    "RUN-010",
    ERROR,
    title="The kubeconfig file is writable",
    why="the file may have entries of other clusters, and a file that cannot be read is never overwritten",
    remedy="set access.kubeconfigFile to another file, or repair this one",
)


class FileInputs(Properties):
    kubeconfig: str = Field(default="", repr=False)
    path: str  # `~` is the home folder, relative to the project


class FileOutputs(Properties):
    context: str  # the name of this cluster's context in the file
    written: str  # names the entry as it was written, without saying what is in it


class KubeconfigFileProvider(StageProvider[FileInputs, FileOutputs]):
    """The kubeconfig is in the file that the stack names, beside whatever else is there."""

    inputs = FileInputs
    outputs = FileOutputs
    secret = frozenset({"kubeconfig"})
    late = frozenset({"kubeconfig"})
    on_cluster = False
    replaces = frozenset({"path"})  # the entry leaves the old file

    async def preflight(self, new: FileInputs, known: FileInputs | None) -> list[Finding]:
        """The file can be taken over; the certificate that was handed out holds for a while."""
        findings = list(_file_findings(new.path))
        with contextlib.suppress(BadKubeconfig):
            certificate = parse(new.kubeconfig).client_certificate_pem
            findings += certificates.judge_expiry(
                "the kubeconfig's client certificate", certificate, _PLACE, datetime.now(UTC)
            )
        return findings

    async def establish(self, inputs: FileInputs, progress: Progress) -> FileOutputs:
        path = target(inputs.path)
        try:
            entry = Entry.of(inputs.kubeconfig)
            present = read(path)
            made = merged(present, entry)
            if made.context != entry.name:
                progress.say(
                    f"{entry.name} in {path} is already the name of another cluster, so this one is called "
                    f"{made.context}"
                )
            if is_open(path):
                progress.say(f"{path} was readable by other users; it is now private")
            write(path, made.text)
        except (BadKubeconfig, OSError) as error:
            raise _failed(path, error) from None
        return FileOutputs(context=made.context, written=entry.mark)

    async def observe(self, inputs: FileInputs, outputs: FileOutputs) -> FileOutputs | None:
        """Gone when the file no longer says what it should, or says it to everybody."""
        path = target(inputs.path)
        try:
            there = holds(read(path), Entry.of(inputs.kubeconfig)) and not is_open(path)
        except (BadKubeconfig, OSError):
            return None
        return outputs if there else None

    async def withdraw(self, inputs: FileInputs, outputs: FileOutputs, progress: Progress) -> None:
        path = target(inputs.path)
        try:
            present = read(path)
            rest = without(present, Entry.of(inputs.kubeconfig))
            if rest == present:
                return
            if rest:
                write(path, rest)
            else:
                path.unlink(missing_ok=True)
        except (BadKubeconfig, OSError) as error:
            # A file that somebody changed since is no reason to keep a whole stack from going away.
            progress.say(f"{path} was not changed: {_reason(error)}")


class KubeconfigFile(StageResource[FileInputs], provider=KubeconfigFileProvider):
    pass


def _file_findings(given: str) -> list[Finding]:
    path = target(given)
    try:
        if path.is_dir():
            raise IsADirectoryError(21, "it is a directory")
        merged(read(path), _NOBODY)
    except (BadKubeconfig, OSError) as error:
        return [RUN_010.at(_PLACE, problem=f"{path}: {_reason(error)}", fix="set another file, or repair this one")]
    return []


# Merging an entry that nobody has shows whether a file can be merged into at all.
_NOBODY = Entry("cozystack-iac", "", {"certificate-authority-data": "-"}, {})


def _failed(path: Path, error: Exception) -> StageFailed:
    return StageFailed(
        f"The kubeconfig could not be written to {path}.",
        details={"problem": _reason(error)},
        means="the file is unchanged and the cluster is fine; `pulumi stack output kubeconfig --show-secrets` "
        "also shows the kubeconfig",
        next_step="set access.kubeconfigFile to another file, or repair this one; then run `pulumi up` again",
    )


def _reason(error: Exception) -> str:
    return (error.strerror or "it is not usable") if isinstance(error, OSError) else str(error)
