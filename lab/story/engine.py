"""The product's own program on an engine in this process: the real graph, the real stages, a cluster in memory.

Pulumi's SDK registers resources as it does under the real engine, each one when all it depends on exists. What the engine and
its plugins would do with them is done here: stages run in the story's event loop, Kubernetes objects go to the API in memory,
Helm releases to `lab.memory.helm`. `state` is what the engine would have written down: only what is finished.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, cast

import dill
import pulumi
from pulumi.runtime.mocks import MockCallArgs, MockMonitor, MockResourceArgs, Mocks
from pulumi.runtime.rpc import UNKNOWN
from pulumi.runtime.settings import SETTINGS
from pulumi.runtime.stack import run_pulumi_func

from cozystack_iac import record
from cozystack_iac.cluster import CozystackCluster
from cozystack_iac.findings import Finding, Severity, Verdict, block
from cozystack_iac.kube.client import KubeError, Object
from cozystack_iac.settings import Site
from cozystack_iac.stages.base import TOOK, StageProvider, plain
from cozystack_iac.waiting import Progress, StageFailed
from lab.memory import MemoryApi, fields
from lab.memory.helm import Helm, HelmFailed

STAGE = "pulumi-python:dynamic/cozystack:"
MACHINES = frozenset(
    ("NodeProbe", "ClusterMembership", "TalosUpgrade", "MachineConfigRollout", "EtcdBootstrap", "NodeVerification")
)
"""Stages that talk to machines."""
HELM = "kubernetes:helm.sh/v3:Release"
THREADS = 32  # each resource that waits holds one of the SDK's

Answer = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
Key = tuple[str, str]  # (type, name)


class Ended(Exception):
    """The run is over: a resource failed, or the engine was killed."""


@dataclass(frozen=True)
class Record:
    """One finished resource."""

    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]


@dataclass
class Run:
    """One operation of the engine. `changes`: what was created, updated or replaced, and deleted, in order."""

    preview: bool
    findings: list[Finding] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    seen: set[Key] = field(default_factory=set)
    busy: set[asyncio.Task[Any]] = field(default_factory=set)
    over: bool = False

    def end(self) -> None:
        """No resource begins any more; those that are being made stop where they are."""
        self.over = True
        for task in self.busy:
            task.cancel()


class Program:
    """One stack. `answer(token, inputs)` stands for the Talos plugin and, unless `machines`, for the stages that talk to
    machines. `scaled(provider, inputs)` may change periods that no stack file can say.
    """

    def __init__(self, site: Site, api: MemoryApi, helm: Helm, answer: Answer, *, machines: bool = False) -> None:
        self.site, self._api, self._helm, self._answer, self._machines = site, api, helm, answer, machines
        self.scaled: Callable[[StageProvider[Any, Any], dict[str, Any]], dict[str, Any]] = lambda _, inputs: inputs
        self.state: dict[Key, Record] = {}
        self.run = Run(preview=False)
        self._loop = asyncio.get_running_loop()

    async def up(self, verdict: Verdict, *, preview: bool = False) -> Run:
        """A preview or an update of everything."""
        self.run = run = Run(preview)
        record._runs.clear()  # a provider process lives as long as its run
        failure = await asyncio.to_thread(self._program, verdict, run)
        if failure and not run.failures and not run.over:
            run.failures.append(failure)
        if not preview and not run.failures and not run.over:
            await self._drop(set(self.state) - run.seen)
        return run

    async def refresh(self) -> list[str]:
        """What the world has, written into the state: the names of what differs. Raises StageFailed as the stages do."""
        drifted = []
        for key, known in list(self.state.items()):
            seen = await self._observed(key, known)
            if seen is None:
                del self.state[key]
                drifted.append(key[1])
            elif seen != known:
                self.state[key] = seen
                drifted.append(key[1])
        return drifted

    # The SDK's side, in a thread of its own ---------------------------------------------------------------------------

    def _program(self, verdict: Verdict, run: Run) -> str:
        """Run the program to its end; returns its own error, if any."""

        async def main() -> None:
            loop = asyncio.get_running_loop()
            loop.set_default_executor(ThreadPoolExecutor(THREADS))
            loop.set_exception_handler(lambda *_: None)  # of a failed resource the SDK leaves futures behind
            monitor = _Monitor(self, run)
            SETTINGS.rpc_manager.clear()  # of a run that was killed, the SDK still waits for what will never come
            SETTINGS.outputs.clear()
            pulumi.runtime.set_mocks(monitor.mocks, preview=run.preview, monitor=monitor, stack="lab")
            try:
                await run_pulumi_func(
                    lambda: cast("None", CozystackCluster(self.site.cluster.name, self.site, verdict))
                )
            except BaseException:
                self._loop.call_soon_threadsafe(run.end)
                raise

        try:
            asyncio.run(main())
        except Exception as error:  # noqa: BLE001  whatever the program raises is its answer
            return str(error)
        return ""

    def register(self, args: MockResourceArgs, ignored: list[str], run: Run) -> tuple[str, dict[str, Any]]:
        """One resource, called from the SDK's threads."""
        future = asyncio.run_coroutine_threadsafe(self._register(args, ignored, run), self._loop)
        return args.name, dict(future.result())

    def call(self, token: str, args: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._answer(token, plain(args))

    # The engine's side ------------------------------------------------------------------------------------------------

    async def _register(self, args: MockResourceArgs, ignored: list[str], run: Run) -> Mapping[str, Any]:
        if run.over:
            raise Ended(args.name)
        key = (args.typ, args.name)
        run.seen.add(key)
        task = asyncio.ensure_future(self._made(key, args.inputs, ignored, run))
        run.busy.add(task)
        try:
            return await task
        except (StageFailed, HelmFailed, KubeError) as failure:
            run.failures.append(str(failure))
            run.end()
            raise Ended(args.name) from None
        except asyncio.CancelledError:
            raise Ended(args.name) from None
        except Exception as error:  # a defect: it must not look like a run that was ended
            run.failures.append(f"{type(error).__name__}: {error}")
            run.end()
            raise
        finally:
            run.busy.discard(task)

    async def _made(self, key: Key, given: Mapping[str, Any], ignored: list[str], run: Run) -> Mapping[str, Any]:
        kind, _ = key
        if kind.startswith(STAGE):
            return await self._stage(key, given, run)
        inputs = plain(given)
        if kind.startswith("kubernetes:") and not run.preview:
            known = self.state.get(key)
            for path in ignored:
                if known is not None:
                    inputs = _kept(inputs, known.inputs, tuple(path.split(".")))
            outputs = await self._object(key, inputs, run)
            self.state[key] = Record(inputs, outputs)
            return outputs
        if kind.startswith("talos:"):
            return {**given, **self._answer(kind, inputs)}
        return given

    async def _stage(self, key: Key, given: Mapping[str, Any], run: Run) -> Mapping[str, Any]:
        provider: StageProvider[Any, Any] = dill.loads(base64.b64decode(plain({"p": given["__provider"]})["p"]))
        inputs = self.scaled(provider, {n: v for n, v in plain(given).items() if n in provider.inputs.model_fields})
        known = self.state.get(key)
        if not self._machines and provider.title in MACHINES:
            return {**inputs, **{n: inputs.get(n) for n in provider.outputs.model_fields}}
        before = known.outputs if known is not None else None
        checked = await provider.on_check(known.inputs if known is not None else {}, inputs)
        run.findings += checked.findings
        if checked.malformed:
            raise StageFailed("; ".join(checked.malformed), means="the inputs do not fit", next_step="correct them")
        blocking = [finding for finding in checked.findings if finding.severity is Severity.ERROR]
        if blocking and not run.preview:
            raise StageFailed("\n".join(map(block, blocking)), means="nothing was changed", next_step="see above")
        inputs = checked.inputs
        if run.preview:
            return {**dict.fromkeys((*provider.outputs.model_fields, TOOK), UNKNOWN), **(before or {}), **inputs}
        changed = provider.diff(key[1], dict(before), inputs) if before is not None else None
        if before is not None and changed is not None and not changed.changes:
            return before
        progress = Progress(provider.title, write=run.said.append)
        if before is None or changed is None:
            outputs = await provider.on_create(inputs, progress)
        elif changed.replaces:
            await provider.on_delete(before, progress)
            outputs = await provider.on_create(inputs, progress)
        else:
            outputs = await provider.on_update(before, inputs, progress)
        self.state[key] = Record(inputs, outputs)
        run.changes.append(key[1])
        return outputs

    # Kubernetes objects -----------------------------------------------------------------------------------------------

    async def _object(self, key: Key, inputs: dict[str, Any], run: Run) -> Mapping[str, Any]:
        known = self.state.get(key)
        if known is not None and known.inputs == inputs:
            return known.outputs
        run.changes.append(key[1])
        if key[0] == HELM:
            made = await self._helm.install(inputs) if known is None else self._helm.upgrade(inputs)
            return {**inputs, **made}
        return {
            **inputs,
            **self._applied(key[1], inputs, replaced=known is not None and key[0] == "kubernetes:batch/v1:Job"),
        }

    def _applied(self, name: str, body: Object, *, replaced: bool) -> Object:
        """Server-side apply, as the Kubernetes plugin does for creates and updates alike; a changed Job is made anew."""
        target = self._target(body)
        if replaced and target.key in self._api.all(target.kind):
            self._api.delete(target)
        return self._api.apply(target, body, manager=f"pulumi-kubernetes-{name}", force=False)

    def _target(self, body: Object) -> Any:
        version, meta = str(body["apiVersion"]), body["metadata"]
        kinds = self._api.kinds.values()
        kind = next((k for k in kinds if k.name == body["kind"] and version in map(k.api_version, k.versions)), None)
        plural = kind.plural if kind is not None else f"{str(body['kind']).lower()}s"
        namespace = meta.get("namespace") or "default"
        return self._api.target(version, plural, namespace, str(meta["name"]))

    async def _observed(self, key: Key, known: Record) -> Record | None:
        """What a refresh writes down for one resource."""
        if key[0].startswith(STAGE):
            seen = await _provider_of(key[0]).on_read(known.outputs)
            return None if seen is None else Record(known.inputs, seen)
        if key[0] == HELM:
            return known
        target = self._target(dict(known.inputs))
        found = self._api.all(target.kind).get(target.key)
        return None if found is None else Record(_as_asked(known.inputs, found), known.outputs)

    async def _drop(self, gone: set[Key]) -> None:
        """Resources the program no longer names, the youngest first."""
        for key in [key for key in reversed(list(self.state)) if key in gone]:
            await self._withdraw(key, self.state.pop(key))
            self.run.changes.append(key[1])

    async def _withdraw(self, key: Key, known: Record) -> None:
        if key[0].startswith(STAGE):
            await _provider_of(key[0]).on_delete(known.outputs, Progress(key[1], write=self.run.said.append))
        elif key[0] == HELM:
            self._helm.uninstall(str(known.inputs["name"]), str(known.inputs["namespace"]))
        elif key[0].startswith("kubernetes:"):
            target = self._target(dict(known.inputs))
            if target.key in self._api.all(target.kind):
                self._api.delete(target)


class _Monitor(MockMonitor):
    def __init__(self, program: Program, run: Run) -> None:
        self._program, self._run = program, run
        self.ignored: dict[str, list[str]] = {}
        super().__init__(_Mocks(program, run, self.ignored))

    def RegisterResource(self, request: Any) -> Any:
        self.ignored[request.name] = list(request.ignoreChanges)
        return super().RegisterResource(request)  # type: ignore[no-untyped-call]  # the SDK has no types here


class _Mocks(Mocks):
    def __init__(self, program: Program, run: Run, ignored: dict[str, list[str]]) -> None:
        self._program, self._run, self._ignored = program, run, ignored

    def new_resource(self, args: MockResourceArgs) -> tuple[str | None, dict[Any, Any]]:
        if args.typ.startswith(("pulumi:", "cozystack:")):
            return args.name, args.inputs
        return self._program.register(args, self._ignored.get(args.name, []), self._run)

    def call(self, args: MockCallArgs) -> Any:
        return dict(self._program.call(args.token, args.args))


def _provider_of(kind: str) -> StageProvider[Any, Any]:
    """The provider of a stage by its token, as a fresh engine finds it."""
    name = kind.removeprefix(STAGE) + "Provider"
    return cast("StageProvider[Any, Any]", next(each for each in _subclasses(StageProvider) if each.__name__ == name)())


def _subclasses(base: type[Any]) -> Iterator[type[Any]]:
    for each in base.__subclasses__():
        yield each
        yield from _subclasses(each)


def _kept(inputs: Mapping[str, Any], before: Mapping[str, Any], path: fields.Path) -> dict[str, Any]:
    """`inputs` with what `before` says at `path`, nothing included."""
    inner = fields.at(before, path)
    cleared = fields.without(inputs, path)
    for key in reversed(path):
        inner = {key: inner}
    return cleared if fields.at(before, path) is None else dict(fields.merged(cleared, inner))


def _as_asked(asked: Any, found: Any) -> Any:
    """The part of `found` that somebody asked for: a refresh compares nothing else."""
    if isinstance(asked, Mapping) and isinstance(found, Mapping):
        return {key: _as_asked(value, found.get(key)) for key, value in asked.items()}
    return found
