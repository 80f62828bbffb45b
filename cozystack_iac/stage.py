"""The one base of every dynamic provider: what a stage of the install is, and how it behaves in every operation.

A stage reads its inputs, asks or changes the outside world through a client, and returns outputs. The rules that people
learn the hard way (see docs/architecture.md, "Stages") are fixed here once: preview asks the live world only about what is
new, updates return all outputs, foreseeable failures carry no traceback, a stage stops when its engine is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Generic, TypeVar, cast

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

from cozystack_iac import engine_watch, record
from cozystack_iac.diagnosis import bundle
from cozystack_iac.findings import Finding, Severity, block

TOOK = "took"  # output of every stage: when its last run started (UTC) and its seconds


class Properties(BaseModel):
    """Inputs or outputs of a stage: frozen, nothing unknown, plain JSON underneath."""

    # Deferred, because the program only declares stages, and no run needs all of them.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


In = TypeVar("In", bound=Properties)
Out = TypeVar("Out", bound=Properties)
T = TypeVar("T")


class StageFailed(Exception):
    """A foreseeable failure whose text stands alone: what failed and where, what was last seen, what it means, what to do."""

    def __init__(self, what: str, *, details: Mapping[str, str] | None = None, means: str, next_step: str) -> None:
        self.what = what
        self.details = dict(details or {})
        self.means = means
        self.next_step = next_step
        super().__init__(what)

    def __str__(self) -> str:
        rows = [*self.details.items(), ("means", self.means), ("next", self.next_step)]
        width = max(len(label) for label, _ in rows)
        indent = " " * (width + 4)
        body = (f"  {label.ljust(width)}  {indent.join(text.splitlines(keepends=True))}" for label, text in rows)
        return "\n".join([self.what, *body])


class Progress:
    """Says what a stage waits for: one line per change, repeated now and then so that silence never means "hung"."""

    def __init__(self, stage: str, *, repeat_s: float = 30.0, write: Callable[[str], None] | None = None) -> None:
        self._stage = stage
        self._repeat_s = repeat_s
        self._write = write or _print_line
        self._started = time.monotonic()
        self._said: str | None = None
        self._said_at = 0.0

    @property
    def elapsed(self) -> timedelta:
        return timedelta(seconds=time.monotonic() - self._started)

    def heartbeat(self) -> None:
        """Repeat the last line when nothing was said for `repeat_s` seconds. Called by the base while a stage runs."""
        if self._said is not None:
            self.say(self._said)

    def say(self, message: str) -> None:
        """Print `message` when it differs from the last one, or when it has been true for `repeat_s` seconds more."""
        now = time.monotonic()
        if message == self._said and now - self._said_at < self._repeat_s:
            return
        self._said, self._said_at = message, now
        self._write(f"{self._stage} [{format_seconds(now - self._started)}] {message}")


def _print_line(text: str) -> None:
    print(text, flush=True)  # the engine shows the provider's stdout live, attached to the stack


def format_seconds(seconds: float) -> str:
    """`75.2` -> `1 min 15 s`; durations as people read them."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


@dataclass(frozen=True)
class Known(Generic[In, Out]):
    """What the state remembers of a stage. A part that an older version wrote differently reads as None, never as a crash."""

    inputs: In | None
    outputs: Out | None


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

    # What the engine calls ------------------------------------------------------------------------------------------

    def configure(self, req: ConfigureRequest) -> None:
        engine_watch.serve_as_provider()

    def check(self, _olds: dict[str, Any], news: dict[str, Any]) -> CheckResult:
        given = _plain(news)
        there = {name: value for name, value in given.items() if not (name in self.late and _has_unknown(value))}
        if _has_unknown(there):
            return CheckResult(given, [])
        try:
            new = self._inputs(there)
        except ValidationError as error:
            return CheckResult(given, [CheckFailure("", text) for text in _validation_texts(error)])
        known = self._try(self.inputs, _plain(_olds)) if _olds else None
        findings = self._run(self.preflight(new, cast("In | None", known)))
        blocking = [CheckFailure("", block(f)) for f in findings if f.severity is Severity.ERROR]
        for finding in findings:
            if finding.severity is not Severity.ERROR:
                _print_line(f"{self._title()}: {block(finding)}")
        if known is not None and not blocking:
            given.update(self._run(self.noticed(new, cast("In", known))))
        return CheckResult(given, blocking)

    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> DiffResult:
        old, new = _plain(_olds), _plain(_news)
        differing = {name for name in self.inputs.model_fields if old.get(name) != new.get(name)}
        matters = (
            {n for n in self.inputs.model_fields if not n.endswith("_s")} if self.matters is None else self.matters
        )
        # An unknown compares as different, which is right, but it is no reason to replace what may turn out equal.
        replaces = [n for n in sorted(differing & self.replaces) if not _has_unknown(new.get(n))]
        changes = bool(differing & matters) or self._drifted(old, new)
        return DiffResult(changes=changes, replaces=replaces, stables=[], delete_before_replace=True)

    def create(self, props: dict[str, Any]) -> CreateResult:
        given, took = _plain(props), Stopwatch()
        progress, inputs = self._progress(), self._inputs(given)
        made = self._run(self._recorded(inputs, self.establish(inputs, progress)), progress)
        return CreateResult(self._title(), self._state({**given, TOOK: took.so_far()}, made))

    def update(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> UpdateResult:
        given, old, took = _plain(_news), _plain(_olds), Stopwatch()
        known = Known(self._try(self.inputs, old), self._try(self.outputs, old))
        progress, inputs = self._progress(), self._inputs(given)
        work = self.revise(inputs, cast("Known[In, Out]", known), progress)
        made = self._run(self._recorded(inputs, work), progress)
        return UpdateResult(self._state({**given, TOOK: took.so_far()}, made))

    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        given = _plain(props)
        inputs, outputs = self._try(self.inputs, given), self._try(self.outputs, given)
        if inputs is None or outputs is None:
            return ReadResult(id_, given)  # written by another version: the next update brings it up to date
        seen = self._run(self.observe(cast("In", inputs), cast("Out", outputs)))
        if seen is None:
            return ReadResult("", {})
        return ReadResult(id_, self._state(given, seen))

    def delete(self, _id: str, _props: dict[str, Any]) -> None:
        given = _plain(_props)
        inputs, outputs = self._try(self.inputs, given), self._try(self.outputs, given)
        if inputs is not None and outputs is not None:
            progress = self._progress()
            self._run(self.withdraw(cast("In", inputs), cast("Out", outputs), progress), progress)

    # ----------------------------------------------------------------------------------------------------------------

    def _drifted(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
        inputs, outputs = self._try(self.inputs, new), self._try(self.outputs, old)
        return inputs is not None and outputs is not None and self.drifted(cast("In", inputs), cast("Out", outputs))

    def _title(self) -> str:
        return type(self).__name__.removesuffix("Provider")

    def _progress(self) -> Progress:
        return Progress(self._title())

    def _inputs(self, props: Mapping[str, Any]) -> In:
        return cast("In", self._load(self.inputs, props))

    @staticmethod
    def _load(model: type[Properties], props: Mapping[str, Any]) -> Properties:
        return model.model_validate({name: props[name] for name in model.model_fields if name in props})

    def _try(self, model: type[Properties], props: Mapping[str, Any]) -> Properties | None:
        if _has_unknown({name: props.get(name) for name in model.model_fields}):
            return None
        with contextlib.suppress(ValidationError):
            return self._load(model, props)
        return None

    def _state(self, given: Mapping[str, Any], made: Properties) -> dict[str, Any]:
        """Inputs beside outputs, because `diff` and `delete` are handed nothing else. Same names keep their secrecy."""
        known = {name: given[name] for name in self.inputs.model_fields if name in given}
        took = {TOOK: given[TOOK]} if given.get(TOOK) else {}  # a refresh leaves it as it was
        return {**known, **made.model_dump(mode="json"), **took}

    async def _recorded(self, inputs: In, work: Coroutine[Any, Any, T]) -> T:
        """Do `work`. A stage on the cluster leaves its mark there: that the run has begun, and where it failed.

        After a failure it also leaves a support bundle beside the project, and the message names the file.
        """
        kubeconfig = str(getattr(inputs, "kubeconfig", "")) if self.on_cluster else ""
        if not kubeconfig:
            return await work
        try:
            await record.begin(kubeconfig, self._title())
        except BaseException:
            work.close()
            raise
        try:
            return await work
        except Exception as error:
            # Texts of what nobody foresaw may hold anything, so only its kind is written down.
            what = error.what if isinstance(error, StageFailed) else f"unexpected: {type(error).__name__}"
            await record.fail(kubeconfig, self._title(), what)
            told = error if isinstance(error, StageFailed) else None
            about = bundle.subjects(told.details) if told else ()
            rows = await bundle.after_failure(kubeconfig, self._title(), str(told or what), about)
            if told:
                told.details |= {row: text for row, text in rows.items() if row not in told.details}
            raise

    def _run(self, work: Coroutine[Any, Any, T], progress: Progress | None = None) -> T:
        return engine_watch.run(work, progress.heartbeat if progress else None)


class Stopwatch:
    """When an operation started and how long it took, for the timeline of the install."""

    def __init__(self) -> None:
        self._started, self._since = datetime.now(UTC), time.monotonic()

    def so_far(self) -> dict[str, Any]:
        return {"started": record.stamp(self._started), "seconds": round(time.monotonic() - self._since, 1)}


@contextlib.asynccontextmanager
async def budget(deadline_s: float, expired: Callable[[], StageFailed]) -> AsyncIterator[None]:
    """Bound a wait by its own budget; when it is used up, `expired` builds the failure from what was last seen."""
    limit = asyncio.timeout(deadline_s)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise  # somebody else's timeout inside the wait: not ours to explain
        raise expired() from None


async def poll(question: Callable[[], Awaitable[T | None]], *, every_s: float = 1.0) -> T:
    """Ask until there is an answer. Only where the other side offers no watch."""
    while (answer := await question()) is None:
        await asyncio.sleep(every_s)
    return answer


_declared: ContextVar[list[StageResource] | None] = ContextVar("_declared", default=None)


@contextlib.contextmanager
def collected() -> Iterator[list[StageResource]]:
    """Every stage that is declared inside the block, in order, however deep in components: for what concerns all of them."""
    found: list[StageResource] = []
    token = _declared.set(found)
    try:
        yield found
    finally:
        _declared.reset(token)


class StageResource(Resource):
    """A stage as a Pulumi resource: known token, declared outputs, secrets marked by its provider's own declaration."""

    def __init__(
        self,
        provider: StageProvider[Any, Any],
        name: str,
        inputs: Mapping[str, Input[Any]],
        opts: ResourceOptions | None = None,
    ) -> None:
        unknown = set(inputs) - set(provider.inputs.model_fields)
        if unknown:
            raise TypeError(f"{type(self).__name__} has no input {', '.join(sorted(unknown))}")
        props: dict[str, Any] = {
            key: Output.secret(value) if key in provider.secret else value for key, value in inputs.items()
        }
        for output in (*provider.outputs.model_fields, TOOK):
            props.setdefault(output, None)
        secrets = ResourceOptions(additional_secret_outputs=sorted(provider.secret))
        super().__init__(provider, name, props, ResourceOptions.merge(secrets, opts))
        if (declared := _declared.get()) is not None:
            declared.append(self)

    def output(self, name: str) -> Output[Any]:
        return cast("Output[Any]", getattr(self, name))


def _plain(props: Any) -> Any:
    """The engine's values as plain Python: secrets unwrapped, whole floats as ints, our own `__provider` left out."""
    if pulumi.runtime.rpc.is_rpc_secret(props):
        return _plain(pulumi.runtime.rpc.unwrap_rpc_secret(props))
    if isinstance(props, dict):
        return {key: _plain(value) for key, value in props.items() if key != "__provider"}
    if isinstance(props, list):
        return [_plain(value) for value in props]
    if isinstance(props, float) and props.is_integer():
        return int(props)
    return props


def _has_unknown(value: Any) -> bool:
    if isinstance(value, Unknown) or value == pulumi.runtime.rpc.UNKNOWN:
        return True
    if isinstance(value, dict):
        return any(map(_has_unknown, value.values()))
    return isinstance(value, list) and any(map(_has_unknown, value))


def _validation_texts(error: ValidationError) -> list[str]:
    return [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_input=False, include_url=False)]
