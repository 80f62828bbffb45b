"""The one base of every dynamic provider: what a stage of the install is, and how it behaves in every operation.

A stage reads its inputs, asks or changes the outside world through a client, and returns outputs. The rules that people
learn the hard way (see docs/architecture.md, "Stages") are fixed here once: preview asks the live world only about what is
new, updates return all outputs, foreseeable failures carry no traceback, a stage stops when its engine is gone.

What the engine's calls mean is written once, as async methods on plain dictionaries (`on_check` to `on_delete`). Pulumi's own
methods call them, and so does the engine in memory that plays the stories.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Generic, TypeVar, cast, overload

import pulumi
from pulumi import Input, Output, ResourceOptions
from pulumi.dynamic import (
    CheckFailure,
    CheckResult,
    ConfigureRequest,
    CreateResult,
    DiffResult,
    ReadResult,
    Resource,
    ResourceProvider,
    UpdateResult,
)
from pulumi.output import Unknown
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import to_jsonable_python

from cozystack_iac import engine_watch, timeline
from cozystack_iac.findings import Finding, Severity, block
from cozystack_iac.waiting import Progress, StageFailed, T, print_line

TOOK = "took"  # output of every stage: when its last run started (UTC) and its seconds


class Properties(BaseModel):
    """Inputs or outputs of a stage: frozen, nothing unknown, plain JSON underneath."""

    # Deferred, because the program only declares stages, and no run needs all of them.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


In = TypeVar("In", bound=Properties)

Out = TypeVar("Out", bound=Properties)


@dataclass(frozen=True)
class Known(Generic[In, Out]):
    """What the state remembers of a stage. A part that an older version wrote differently reads as None, never as a crash."""

    inputs: In | None
    outputs: Out | None


@dataclass(frozen=True)
class Checked:
    """`malformed`: what does not even have the form of inputs. `findings`: what the live world has to say about them."""

    inputs: dict[str, Any]
    findings: tuple[Finding, ...] = ()
    malformed: tuple[str, ...] = ()


on_begin: list[Callable[[str, str], Awaitable[None]]] = []
"""Called with kubeconfig and name of a stage that begins to work on a cluster. Must not raise."""
on_failure: list[Callable[[str, str, Exception], Awaitable[Mapping[str, str]]]] = []
"""Called with kubeconfig, name and error of a stage that failed there; gives rows for its message. Must not raise."""


class StageProvider(ResourceProvider, ABC, Generic[In, Out]):
    """Base of all dynamic providers. A subclass names its models and fills in `establish`; the rest has safe defaults.

    Providers hold no state: they are pickled by reference and must load from any state this project ever wrote.
    """

    serialize_as_secret_always = False  # nothing is captured, so there is nothing to encrypt

    inputs: ClassVar[type[Properties]]
    outputs: ClassVar[type[Properties]]
    secret: ClassVar[frozenset[str]]
    """Names of the inputs and outputs that are secret. Mandatory: forgetting must be an error, an empty set is an answer."""
    matters: ClassVar[frozenset[str] | None] = None
    """Inputs whose change runs the stage again; None means all but budgets (names ending in `_s`)."""
    replaces: ClassVar[frozenset[str]] = frozenset()
    on_cluster: ClassVar[bool] = True
    """Whether a stage with an input `kubeconfig` works on that cluster: its runs and failures are then recorded there."""
    late: ClassVar[frozenset[str]] = frozenset()
    """Inputs that `preflight` can do without: while unknown (a first preview) they keep their defaults, others stop it."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if getattr(cls, "__abstractmethods__", None) or ABC in cls.__bases__:
            return
        missing = [name for name in ("inputs", "outputs", "secret") if not hasattr(cls, name)]
        if missing:
            raise TypeError(f"{cls.__name__} does not declare {', '.join(missing)}")
        fields = {*cls.inputs.model_fields, *cls.outputs.model_fields}
        named = {*cls.secret, *(cls.matters or ()), *cls.replaces, *cls.late}
        if named - fields:
            raise TypeError(f"{cls.__name__} names properties that do not exist: {', '.join(sorted(named - fields))}")
        for name in cls.inputs.model_fields.keys() & cls.outputs.model_fields.keys():
            if cls.inputs.model_fields[name].annotation != cls.outputs.model_fields[name].annotation:
                # They share one place in the state, so the next run would always find a difference.
                raise TypeError(f"{cls.__name__} has an input and an output called {name} that can never be equal")
        needed = [name for name in sorted(cls.late) if cls.inputs.model_fields[name].is_required()]
        if needed:
            raise TypeError(f"{cls.__name__} has no default for what may come late: {', '.join(needed)}")

    # What a stage fills in ------------------------------------------------------------------------------------------

    async def preflight(self, new: In, known: In | None) -> list[Finding]:
        """Read-only questions to the live world, during preview and update alike. `known`: the inputs already built."""
        return []

    async def noticed(self, new: In, known: In) -> Mapping[str, Any]:
        """Inputs of a stage that was built before which only a look at the world can fill in, so that they show in the plan.

        Read-only, like `preflight`, and never failing: what cannot be found out is what it was.
        """
        return {}

    @abstractmethod
    async def establish(self, inputs: In, progress: Progress) -> Out:
        """Make it so. Reads first, adopts what matches, refuses what conflicts; safe to run twice and to be killed."""

    async def revise(self, inputs: In, known: Known[In, Out], progress: Progress) -> Out:
        """Inputs that matter have changed. Returns *all* outputs."""
        return await self.establish(inputs, progress)

    async def observe(self, inputs: In, outputs: Out) -> Out | None:
        """Refresh: the outputs as the world has them now; None when it is gone. An unanswered question raises."""
        return outputs

    def drifted(self, inputs: In, outputs: Out) -> bool:
        """Whether what a refresh saw calls for another run, though no input has changed. Pure."""
        return False

    async def withdraw(self, inputs: In, outputs: Out, progress: Progress) -> None:
        """Delete: forget. Never destroys data; says what a person would have to do, where there is something."""

    # What the engine's calls mean -----------------------------------------------------------------------------------

    async def on_check(self, olds: Mapping[str, Any], news: Mapping[str, Any]) -> Checked:
        """The inputs as they are to be, and what speaks against them. Asks the live world, unless too much is unknown yet."""
        given = dict(news)
        there = {name: value for name, value in given.items() if not (name in self.late and has_unknown(value))}
        if has_unknown(there):
            return Checked(given)
        try:
            new = self._inputs(there)
        except ValidationError as error:
            return Checked(given, malformed=tuple(_validation_texts(error)))
        known = cast("In | None", self._try(self.inputs, olds)) if olds else None
        findings = tuple(await self.preflight(new, known))
        if known is not None and not any(f.severity is Severity.ERROR for f in findings):
            given.update(await self.noticed(new, known))
        return Checked(given, findings)

    async def on_create(self, props: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
        """What the state says of the stage from now on."""
        took, inputs = Stopwatch(), self._inputs(props)
        made = await self._accounted(inputs, self.establish(inputs, progress))
        return self._state({**props, TOOK: took.so_far()}, made)

    async def on_update(self, olds: Mapping[str, Any], news: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
        """What the state says of the stage from now on: all outputs, those that stay as they were included."""
        took, inputs = Stopwatch(), self._inputs(news)
        known = Known(self._try(self.inputs, olds), self._try(self.outputs, olds))
        made = await self._accounted(inputs, self.revise(inputs, cast("Known[In, Out]", known), progress))
        return self._state({**news, TOOK: took.so_far()}, made)

    async def on_read(self, props: Mapping[str, Any]) -> dict[str, Any] | None:
        """What the state has to say after a look at the world; None when it is gone."""
        inputs, outputs = self._try(self.inputs, props), self._try(self.outputs, props)
        if inputs is None or outputs is None:
            return dict(props)  # written by another version: the next update brings it up to date
        seen = await self.observe(cast("In", inputs), cast("Out", outputs))
        return None if seen is None else self._state(props, seen)

    async def on_delete(self, props: Mapping[str, Any], progress: Progress) -> None:
        inputs, outputs = self._try(self.inputs, props), self._try(self.outputs, props)
        if inputs is not None and outputs is not None:
            await self.withdraw(cast("In", inputs), cast("Out", outputs), progress)

    # What the engine calls ------------------------------------------------------------------------------------------

    def configure(self, req: ConfigureRequest) -> None:
        engine_watch.serve_as_provider()

    def check(self, _olds: dict[str, Any], news: dict[str, Any]) -> CheckResult:
        checked = self._run(self.on_check(plain(_olds), plain(news)))
        for finding in checked.findings:
            if finding.severity is not Severity.ERROR:
                print_line(f"{self.title}: {block(finding)}")
        texts = (*checked.malformed, *(block(f) for f in checked.findings if f.severity is Severity.ERROR))
        return CheckResult(checked.inputs, [CheckFailure("", text) for text in texts])

    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> DiffResult:
        old, new = plain(_olds), plain(_news)
        differing = {name for name in self.inputs.model_fields if old.get(name) != new.get(name)}
        matters = (
            {n for n in self.inputs.model_fields if not n.endswith("_s")} if self.matters is None else self.matters
        )
        # An unknown compares as different, which is right, but it is no reason to replace what may turn out equal.
        replaces = [n for n in sorted(differing & self.replaces) if not has_unknown(new.get(n))]
        changes = bool(differing & matters) or self._drifted(old, new)
        return DiffResult(changes=changes, replaces=replaces, stables=[], delete_before_replace=True)

    def create(self, props: dict[str, Any]) -> CreateResult:
        progress = Progress(self.title)
        return CreateResult(self.title, self._run(self.on_create(plain(props), progress), progress))

    def update(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> UpdateResult:
        progress = Progress(self.title)
        return UpdateResult(self._run(self.on_update(plain(_olds), plain(_news), progress), progress))

    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        seen = self._run(self.on_read(plain(props)))
        return ReadResult("", {}) if seen is None else ReadResult(id_, seen)

    def delete(self, _id: str, _props: dict[str, Any]) -> None:
        progress = Progress(self.title)
        self._run(self.on_delete(plain(_props), progress), progress)

    # ----------------------------------------------------------------------------------------------------------------

    def _drifted(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
        inputs, outputs = self._try(self.inputs, new), self._try(self.outputs, old)
        return inputs is not None and outputs is not None and self.drifted(cast("In", inputs), cast("Out", outputs))

    @property
    def title(self) -> str:
        """Its name in messages, in the state and in the record of the install."""
        return type(self).__name__.removesuffix("Provider")

    def _inputs(self, props: Mapping[str, Any]) -> In:
        return cast("In", self._load(self.inputs, props))

    @staticmethod
    def _load(model: type[Properties], props: Mapping[str, Any]) -> Properties:
        return model.model_validate({name: props[name] for name in model.model_fields if name in props})

    def _try(self, model: type[Properties], props: Mapping[str, Any]) -> Properties | None:
        if has_unknown({name: props.get(name) for name in model.model_fields}):
            return None
        with contextlib.suppress(ValidationError):
            return self._load(model, props)
        return None

    def _state(self, given: Mapping[str, Any], made: Properties) -> dict[str, Any]:
        """Inputs beside outputs, because `diff` and `delete` are handed nothing else. Same names keep their secrecy."""
        known = {name: given[name] for name in self.inputs.model_fields if name in given}
        took = {TOOK: given[TOOK]} if given.get(TOOK) else {}  # a refresh leaves it as it was
        return {**known, **made.model_dump(mode="json"), **took}

    async def _accounted(self, inputs: In, work: Coroutine[Any, Any, T]) -> T:
        """Do `work`. Whoever keeps account of a cluster hears that a stage begins there, and where one failed.

        What they know about a failure goes into its message.
        """
        kubeconfig = str(getattr(inputs, "kubeconfig", "")) if self.on_cluster else ""
        if not kubeconfig:
            return await work
        try:
            for begins in on_begin:
                await begins(kubeconfig, self.title)
        except BaseException:
            work.close()
            raise
        try:
            return await work
        except Exception as error:
            for fails in on_failure:
                rows = await fails(kubeconfig, self.title, error)
                if isinstance(error, StageFailed):
                    error.details |= {row: text for row, text in rows.items() if row not in error.details}
            raise

    def _run(self, work: Coroutine[Any, Any, T], progress: Progress | None = None) -> T:
        return engine_watch.run(work, progress.heartbeat if progress else None)


class Stopwatch:
    """When an operation started and how long it took, for the timeline of the install."""

    def __init__(self) -> None:
        self._started, self._since = datetime.now(UTC), time.monotonic()

    def so_far(self) -> dict[str, Any]:
        return {"started": timeline.stamp(self._started), "seconds": round(time.monotonic() - self._since, 1)}


_declared: ContextVar[list[StageResource[Any]] | None] = ContextVar("_declared", default=None)


@contextlib.contextmanager
def collected() -> Iterator[list[StageResource[Any]]]:
    """Every stage that is declared inside the block, in order, however deep in components: for what concerns all of them."""
    found: list[StageResource[Any]] = []
    token = _declared.set(found)
    try:
        yield found
    finally:
        _declared.reset(token)


class StageResource(Resource, Generic[In]):
    """A stage as a Pulumi resource: known token, declared outputs, secrets marked by its provider's own declaration."""

    stage: ClassVar[type[StageProvider[Any, Any]]]

    def __init_subclass__(cls, *, provider: type[StageProvider[Any, Any]]) -> None:
        super().__init_subclass__(module="cozystack", name=cls.__name__)
        cls.stage = provider

    def __init__(self, name: str, inputs: In, opts: ResourceOptions | None = None) -> None:
        """`inputs`: made with `model_construct`, so that what only the engine will know can stand in it (see `later`)."""
        provider = self.stage()
        given = {key: _declared_as(getattr(inputs, key)) for key in sorted(inputs.model_fields_set)}
        props: dict[str, Any] = {
            key: Output.secret(value) if key in provider.secret else value for key, value in given.items()
        }
        for output in (*provider.outputs.model_fields, TOOK):
            props.setdefault(output, None)
        secrets = ResourceOptions(additional_secret_outputs=sorted(provider.secret))
        super().__init__(provider, name, props, ResourceOptions.merge(secrets, opts))
        if (declared := _declared.get()) is not None:
            declared.append(self)

    def output(self, name: str) -> Output[Any]:
        return cast("Output[Any]", getattr(self, name))


@overload
def later(value: Output[T]) -> T: ...


@overload
def later(value: Input[T]) -> T: ...


def later(value: Any) -> Any:
    """A value that only the engine will know, where an input of a stage is declared: it is an Output until then."""
    return value


def _declared_as(value: Any) -> Any:
    """An input as the SDK takes it: models as JSON, Outputs as they are."""
    if isinstance(value, Output):
        return value
    if isinstance(value, Mapping):
        return {key: _declared_as(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_declared_as(each) for each in value]
    return to_jsonable_python(value)


def plain(props: Any) -> Any:
    """The engine's values as plain Python: secrets unwrapped, whole floats as ints, our own `__provider` left out."""
    if pulumi.runtime.rpc.is_rpc_secret(props):
        return plain(pulumi.runtime.rpc.unwrap_rpc_secret(props))
    if isinstance(props, dict):
        return {key: plain(value) for key, value in props.items() if key != "__provider"}
    if isinstance(props, list):
        return [plain(value) for value in props]
    if isinstance(props, float) and props.is_integer():
        return int(props)
    return props


def has_unknown(value: Any) -> bool:
    if isinstance(value, Unknown) or value == pulumi.runtime.rpc.UNKNOWN:
        return True
    if isinstance(value, dict):
        return any(map(has_unknown, value.values()))
    return isinstance(value, list) and any(map(has_unknown, value))


def _validation_texts(error: ValidationError) -> list[str]:
    return [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_input=False, include_url=False)]
