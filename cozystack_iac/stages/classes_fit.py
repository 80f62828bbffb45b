"""The storage classes' stage: what is there already fits, or the preview says what does not."""

from __future__ import annotations

from functools import partial
from typing import Literal

from pydantic import Field

from cozystack_iac.findings import ERROR, WARNING, Finding, block
from cozystack_iac.kube.client import Conflict, Kube, KubeError, Object, Ref
from cozystack_iac.kube.outage import outlasting
from cozystack_iac.stages.base import Properties, StageProvider, StageResource
from cozystack_iac.storage import classes
from cozystack_iac.waiting import Progress, StageFailed

CLASSES = Ref("storage.k8s.io/v1", "storageclasses")


Owner = Literal["ours", "foreign", "missing"]


class ClassInputs(Properties):
    kubeconfig: str = Field(repr=False)
    mode: Literal["create", "adopt"]
    pool: str
    copies: int  # of a replicated volume, as its class would be made
    nodes: int  # storage nodes: no class can ask for more copies
    checks: Literal["live", "offline"] = "live"
    deadline_s: float  # how long the API server may be away; the engine asks for this look in the middle of an install


class ClassOutputs(Properties):
    classes: dict[str, Owner]  # by name, with `adopt` only
    conflicts: list[str] = Field(default_factory=list)  # what a refresh found wrong with them


class ClassesFitProvider(StageProvider[ClassInputs, ClassOutputs]):
    """No class of these names is somebody else's (`create`), or those that are fit (`adopt`); one class is the default.

    With `adopt` the missing ones are made here, so that nobody has to make the other class by hand; what exists is never
    changed. With `create` the engine makes both, behind this look.
    """

    inputs = ClassInputs
    outputs = ClassOutputs
    secret = frozenset({"kubeconfig"})
    matters = frozenset({"mode", "pool", "copies"})

    async def preflight(self, new: ClassInputs, known: ClassInputs | None) -> list[Finding]:
        if known is not None and (known.mode, known.pool, known.copies) == (new.mode, new.pool, new.copies):
            return []
        if new.checks == "offline":
            fix = "run the preview with `checks: live`; the update checks in any case"
            problem = "the storage classes were not checked"
            return [classes.CLS_006.at("storageclasses", problem=problem, fix=fix, severity=WARNING)]
        try:
            return _judged(new, await _existing(new, Progress(self.title)))
        except KubeError as error:
            problem = f"the API server does not respond: {error}"
            return [classes.CLS_006.at("storageclasses", problem=problem, fix=classes.CLS_006.remedy)]

    async def establish(self, inputs: ClassInputs, progress: Progress) -> ClassOutputs:
        try:
            found = await _existing(inputs, progress)
            _refuse(_judged(inputs, found))
            if inputs.mode == "adopt":
                await _make_missing(inputs, found, progress)
                found = await _existing(inputs, progress)
        except KubeError as error:
            raise _unknown(error) from None
        for finding in _judged(inputs, found):
            progress.say(block(finding))
        return _seen(inputs, found)

    async def observe(self, inputs: ClassInputs, outputs: ClassOutputs) -> ClassOutputs | None:
        try:
            return _seen(inputs, await _existing(inputs, Progress(self.title)))
        except KubeError as error:
            raise _unknown(error) from None

    def drifted(self, inputs: ClassInputs, outputs: ClassOutputs) -> bool:
        """With `create` the engine itself sees when one of ours is gone."""
        return "missing" in outputs.classes.values() or bool(outputs.conflicts)

    async def withdraw(self, inputs: ClassInputs, outputs: ClassOutputs, progress: Progress) -> None:
        """Classes that were made here go; those of others, and every volume, stay."""
        if inputs.mode != "adopt":
            return
        async with Kube.connect(inputs.kubeconfig) as kube:
            for name in classes.NAMES:
                found = await kube.find(CLASSES.named(name))
                if found is not None and classes.is_ours(found):
                    await kube.delete(CLASSES.named(name))
        progress.say("the volumes of the storage classes are kept")


class ClassesFit(StageResource[ClassInputs], provider=ClassesFitProvider):
    pass


def _judged(inputs: ClassInputs, found: list[Object]) -> list[Finding]:
    return classes.judge_classes(found, classes.storage_classes(inputs.pool, inputs.copies), inputs.mode, inputs.nodes)


async def _existing(inputs: ClassInputs, progress: Progress) -> list[Object]:
    async with Kube.connect(inputs.kubeconfig) as kube:
        return await outlasting(lambda: kube.objects(CLASSES), inputs.deadline_s, progress.say)


async def _make_missing(inputs: ClassInputs, found: list[Object], progress: Progress) -> None:
    async with Kube.connect(inputs.kubeconfig) as kube:
        for body in classes.missing(found, classes.storage_classes(inputs.pool, inputs.copies)):
            name = body["metadata"]["name"]
            progress.say(f"creating the missing storage class {name}")
            try:
                await outlasting(partial(kube.create, CLASSES.named(name), body), inputs.deadline_s, progress.say)
            except Conflict:  # somebody was faster, or the answer to an earlier try was lost; the next look judges it
                continue


def _seen(inputs: ClassInputs, found: list[Object]) -> ClassOutputs:
    conflicts = [f"{f.code}: {f.problem}" for f in _judged(inputs, found) if f.severity is ERROR]
    if inputs.mode == "create":  # the engine knows its own, which come after this look
        return ClassOutputs(classes={}, conflicts=conflicts)
    there = {str(c["metadata"]["name"]): c for c in found}
    owners: dict[str, Owner] = dict.fromkeys(classes.NAMES, "missing")
    owners |= {n: "ours" if classes.is_ours(there[n]) else "foreign" for n in classes.NAMES if n in there}
    return ClassOutputs(classes=owners, conflicts=conflicts)


def _refuse(findings: list[Finding]) -> None:
    errors = [finding for finding in findings if finding.severity is ERROR]
    if not errors:
        return
    details = {f"{f.code} {f.path}": f"{f.problem}\n{f.fix}" + (f"\n{f.command}" if f.command else "") for f in errors}
    raise StageFailed(
        f"{len(errors)} storage class conflict(s) were found.",
        details=details,
        means="the pools are registered; no storage class was created, changed or removed",
        next_step="choose one of the options above, then run `pulumi up` again",
    )


def _unknown(error: KubeError) -> StageFailed:
    return StageFailed(
        "The storage classes of the cluster cannot be read.",
        details={"answer": str(error)},
        means="nothing was changed, because this stack could otherwise change a class that belongs to someone else",
        next_step="check that the API server is reachable from here, then run `pulumi up` again",
    )
