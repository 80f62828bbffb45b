"""The support bundle: everything somebody needs who was not there, in one archive without a secret in it.

It is written beside the project and never sent anywhere. Every text goes through `redaction` once more on its way in.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from cozystack_iac import diagnosis, record
from cozystack_iac.diagnosis import evidence, issue
from cozystack_iac.diagnosis.signs import Evidence, Kind, Sign
from cozystack_iac.findings import Verdict, as_json
from cozystack_iac.kube.client import Kube, KubeError
from cozystack_iac.kube.kubeconfig import BadKubeconfig
from cozystack_iac.redaction import clean, clean_object
from cozystack_iac.timeline import stamp

FOLDER_VARIABLE = "COZYSTACK_IAC_BUNDLES"  # where archives go; the runner sets it
STACK_VARIABLE = "COZYSTACK_IAC_STACK_FILE"  # the stack file of the run, for its findings; the runner sets it
FOLDER = Path(".cozystack") / "bundles"  # below the project: Pulumi starts providers there
MOMENTS = 2000  # lines of the timeline

README = """\
Support bundle of cozystack-iac, created on {when}.

Nothing was sent anywhere. Keys, tokens, certificates and passwords were removed by pattern. The bundle still contains
names and addresses of the site: review it before you share it.

  issue.md        an issue report ready to paste, and the project it is for
  failure.txt     the error message of the run
  diagnosis.txt   known failures that were recognized, with their fixes
  signs.txt       problems in the cluster, as the API reports them
  states.txt      every condition of releases, packages, sources, nodes, APIs and certificates
  events.txt      warnings of the last hour, each kind once
  logs/           last lines of containers that are not running
  probes.txt      responses of machines and public names; the API server's own checks
  timeline.txt    when each condition last changed
  findings.json   the findings on the stack file, if it was available
  versions.json   installed versions
  record.json     the install record in the cluster
  gaps.txt        queries that got no answer, so nothing can be concluded from them
"""


@dataclass(frozen=True)
class Case:
    """What a bundle is made of. `failure` is empty when somebody asked for it by hand."""

    stage: str
    failure: str
    evidence: Evidence
    when: datetime
    findings: Verdict = field(default_factory=Verdict)
    probes: Mapping[str, str] = field(default_factory=dict)
    record: Mapping[str, str] = field(default_factory=dict)


def files(case: Case) -> dict[str, str]:
    """Every file of the archive by name, without key material. Pure."""
    seen = case.evidence
    found = diagnosis.recognise(seen)
    logs = {f"logs/{_file_name(s.subject)}.log": s.message for s in seen.of(Kind.LOG)}
    texts = {
        "README.txt": README.format(when=stamp(case.when)),
        "issue.md": issue.text(case.stage, case.failure, found, seen),
        "failure.txt": case.failure or "nothing failed; the bundle was requested by hand",
        "diagnosis.txt": "\n\n".join(f"{d.id}\n{d}" for d in found) or "no known failure was recognized",
        "signs.txt": _lines(s for s in seen.signs if s.kind not in (Kind.LOG, Kind.EVENT)),
        "states.txt": _lines(seen.states),
        "events.txt": _lines(seen.of(Kind.EVENT)),
        "probes.txt": "\n\n".join(f"{what}\n{said}" for what, said in {**case.probes, **seen.health}.items()),
        "timeline.txt": "\n".join(timeline(seen, case.record)),
        "findings.json": json.dumps(clean_object(json.loads(as_json(case.findings))), indent=2, ensure_ascii=False),
        "versions.json": json.dumps(clean_object(dict(seen.versions)), indent=2),
        "record.json": json.dumps(clean_object(dict(case.record)), indent=2),
        "gaps.txt": "\n".join(f"{what}: {why}" for what, why in seen.gaps.items()) or "none",
    }
    return {name: clean(text).rstrip() + "\n" for name, text in {**texts, **logs}.items()}


def timeline(seen: Evidence, known: Mapping[str, str]) -> list[str]:
    """What has a time, in its order: conditions, events, and the record of the install."""
    moments = {(s.at, f"{s.kind.value} {s.subject}: {s.reason}") for s in (*seen.states, *seen.signs) if s.at}
    marks = {(at, f"install {what}") for what, at in known.items() if what in ("started", "completed", "failed")}
    return [f"{at}  {what}" for at, what in sorted(moments | marks)][-MOMENTS:]


def archive(contents: Mapping[str, str], root: str, when: datetime) -> bytes:
    """A .tar.gz with `contents` below the folder `root`; it names no person and no workstation."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, text in contents.items():
            data = text.encode()
            member = tarfile.TarInfo(f"{root}/{name}")
            member.size, member.mode, member.mtime = len(data), 0o600, int(when.timestamp())
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def write(folder: Path, case: Case) -> Path:
    """The archive as a new file below `folder`, which only its owner may look into. Raises OSError."""
    name = f"cozystack-iac-{_file_name(case.stage or 'bundle')}-{case.when.astimezone(UTC):%Y%m%dT%H%M%SZ}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    data = archive(files(case), name, case.when)
    for attempt in range(1, 100):
        path = folder / f"{name}{f'-{attempt}' if attempt > 1 else ''}.tar.gz"
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            continue
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        return path
    raise FileExistsError(f"{folder} already has too many bundles of this second")


async def after_failure(kubeconfig: str, stage: str, failure: str, about: Sequence[str]) -> dict[str, str]:
    """Look at the cluster, write the bundle; rows for the failure's details: what is known of it, and where that is.

    Never raises: it runs because something else went wrong, and that is what a person has to read.
    """
    now = datetime.now(UTC)
    seen, known = await look(kubeconfig, about)
    rows = {} if about else diagnosis.rows(seen)  # a failure that names its subjects has looked for itself
    try:
        findings = await asyncio.to_thread(findings_of, os.environ.get(STACK_VARIABLE, ""))
        case = Case(stage, failure, seen, now, findings, record=known)
        path = await asyncio.to_thread(write, Path(os.environ.get(FOLDER_VARIABLE) or FOLDER), case)
    except Exception as error:  # noqa: BLE001 - whatever it is, the stage's own failure is what a person has to read
        if not isinstance(error, OSError):
            return {**rows, "bundle": f"the support bundle could not be made: {type(error).__name__}"}
        return {**rows, "bundle": f"the support bundle could not be written: {error.strerror or error}"}
    said = (
        f"{path.absolute()}\nthe bundle contains no secrets and was not sent anywhere; issue.md in it is ready to paste"
    )
    return {**rows, "bundle": said}


async def look(kubeconfig: str, about: Sequence[str]) -> tuple[Evidence, dict[str, str]]:
    """Evidence and the install's own record; an API server that does not answer is a gap in it, never an exception."""
    try:
        async with Kube.connect(kubeconfig) as kube:
            seen = await evidence.collect(kube, about)
            known = {} if "everything" in seen.gaps else await record.read(kube) or {}
    except (KubeError, BadKubeconfig) as error:
        return Evidence(about=tuple(about), gaps={"everything": clean(str(error))}), {}
    return seen, known


def findings_of(stack_file: str) -> Verdict:
    """The offline verdict on the stack file; nothing when the run did not say which file it is."""
    if not stack_file or not Path(stack_file).is_file():
        return Verdict()
    from cozystack_iac.rules import verdict  # the rules look at every stage, and every stage looks here
    from cozystack_iac.settings.load import from_file

    return verdict(from_file(Path(stack_file)))


def subjects(details: Mapping[str, str]) -> tuple[str, ...]:
    """What a failure is about: those of its rows that name a release or a package."""
    return tuple(name for name in details if re.fullmatch(r"(Package \S+|[a-z0-9-]+/[a-z0-9.-]+)", name))


def _lines(signs: Iterable[Sign]) -> str:
    return "\n".join(f"{s.at:<20}  {s.kind.value:<11}  {s}" for s in signs) or "none"


def _file_name(subject: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "_", subject).strip("_.") or "unnamed"
