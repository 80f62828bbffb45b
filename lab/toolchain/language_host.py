"""A language host for Python programs, for machines without the official one: `python -m lab.toolchain.language_host ENGINE`.

The engine starts it, reads a port from its first line, and asks it to run programs, policy packs and component plugins.
Options of the official host that are honoured: `virtualenv`, and `toolchain: uv` (as `.venv`); `typechecker` is not.
"""

import errno
import json
import logging
import os
import queue
import signal
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from subprocess import PIPE
from types import FrameType
from typing import IO, Any

import grpc  # type: ignore[import-untyped]
from google.protobuf import empty_pb2, json_format
from pulumi.runtime._grpc_settings import _GRPC_CHANNEL_OPTIONS
from pulumi.runtime.proto import language_pb2, language_pb2_grpc, plugin_pb2

from cozystack_iac.engine_watch import EngineWatch, engine_address
from lab.toolchain import project
from lab.toolchain.child import SHOWN
from lab.toolchain.children import Child, Children, in_environment_of, inherited_environment, interpreter
from lab.toolchain.policy_gate import PolicyGate

Output = language_pb2.RunPluginResponse


class LanguageHost(language_pb2_grpc.LanguageRuntimeServicer):
    """The calls of the engine. Errors that a user can act on are answered as text, never as a traceback."""

    def __init__(self, engine: str, children: Children) -> None:
        self._engine = engine
        self._children = children
        self._programs: set[Child] = set()

    def Handshake(
        self, request: language_pb2.LanguageHandshakeRequest, context: grpc.ServicerContext
    ) -> language_pb2.LanguageHandshakeResponse:
        self._engine = request.engine_address
        return language_pb2.LanguageHandshakeResponse()

    def GetPluginInfo(self, request: empty_pb2.Empty, context: grpc.ServicerContext) -> plugin_pb2.PluginInfo:
        return plugin_pb2.PluginInfo(version=metadata.version("pulumi"))

    def GetRequiredPackages(
        self, request: language_pb2.GetRequiredPackagesRequest, context: grpc.ServicerContext
    ) -> language_pb2.GetRequiredPackagesResponse:
        """None: each resource names its package and version itself, and acquisition ahead of time is off in the lab."""
        return language_pb2.GetRequiredPackagesResponse()

    def InstallDependencies(
        self, request: language_pb2.InstallDependenciesRequest, context: grpc.ServicerContext
    ) -> Iterator[language_pb2.InstallDependenciesResponse]:
        """Install nothing: the project's environment is made by its own means. It only has to be there."""
        with _told_as(context):
            python = _python(request.info)
            text = f"nothing installed: {python} is used as it is\n"
            yield language_pb2.InstallDependenciesResponse(stdout=text.encode())

    def About(self, request: language_pb2.AboutRequest, context: grpc.ServicerContext) -> language_pb2.AboutResponse:
        with _told_as(context):
            python = _python(request.info)
            version = project.python_version(python)
            return language_pb2.AboutResponse(executable=str(python), version=version)

    def GetProgramDependencies(
        self, request: language_pb2.GetProgramDependenciesRequest, context: grpc.ServicerContext
    ) -> language_pb2.GetProgramDependenciesResponse:
        with _told_as(context):
            found = project.dependencies(_python(request.info), transitive=request.transitiveDependencies)
            listed = [language_pb2.DependencyInfo(name=name, version=version) for name, version in found]
            return language_pb2.GetProgramDependenciesResponse(dependencies=listed)

    def Run(self, request: language_pb2.RunRequest, context: grpc.ServicerContext) -> language_pb2.RunResponse:
        """Run the program to its end. `bail` means that the user has been told already."""
        try:
            child = self._start_program(request)
        except OSError as error:
            return language_pb2.RunResponse(error=_readable(error, request.config))
        context.add_callback(child.stop)
        self._programs.add(child)
        try:
            code = child.wait()
        finally:
            self._programs.discard(child)
            self._children.remove(child)
        if code == 0:
            return language_pb2.RunResponse()
        if child.stopped or code == SHOWN:
            return language_pb2.RunResponse(bail=True)
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        return language_pb2.RunResponse(error=f"the Python program {how}; what it printed is above")

    def Cancel(self, request: empty_pb2.Empty, context: grpc.ServicerContext) -> empty_pb2.Empty:
        """The user interrupted the engine: interrupt the programs. Plugins are ended by the engine, one by one."""
        for child in list(self._programs):
            threading.Thread(target=child.stop, daemon=True).start()
        return empty_pb2.Empty()

    def RunPlugin(self, request: language_pb2.RunPluginRequest, context: grpc.ServicerContext) -> Iterator[Output]:
        """Run a policy pack or a component plugin; its output and at last its exit code are streamed back."""
        with _told_as(context):
            python = _python(request.info)
            environment = inherited_environment()
            environment |= dict(entry.partition("=")[::2] for entry in request.env if "=" in entry)
            environment = in_environment_of(python, environment)
            if request.kind == "analyzer":
                yield from self._run_pack(request, context, python, environment)
            else:
                spec = _plugin_spec(request)
                child = self._start(python, spec, request.pwd, environment, output=PIPE)
                context.add_callback(child.stop)
                yield from self._relay(child)

    def _run_pack(
        self,
        request: language_pb2.RunPluginRequest,
        context: grpc.ServicerContext,
        python: Path,
        environment: Mapping[str, str],
    ) -> Iterator[Output]:
        started: queue.SimpleQueue[Child | None] = queue.SimpleQueue()
        spec = {"kind": "module", "name": "pulumi.policy", "args": [*request.args, request.info.program_directory]}

        def start(stack: Mapping[str, str]) -> int:
            child = self._start(python, spec, request.pwd, {**environment, **stack}, output=PIPE)
            context.add_callback(child.stop)
            port = _first_line(child)
            started.put(child)
            return port

        gate = PolicyGate(start)
        context.add_callback(lambda: started.put(None))
        try:
            yield Output(stdout=f"{gate.port}\n".encode())
            child = started.get()
            if child is not None:
                yield from self._relay(child)
        finally:
            gate.close()

    def _start_program(self, request: language_pb2.RunRequest) -> Child:
        info = request.info
        python = _python(info)
        spec = {
            "kind": "program",
            "path": str(Path(info.program_directory) / (info.entry_point or ".")),
            "args": list(request.args[1:]),  # the first is the engine's own address
            "settings": {
                "project": request.project,
                "stack": request.stack,
                "organization": request.organization or "organization",
                "monitor": request.monitor_address,
                "engine": request.args[0] if request.args else self._engine,
                "parallel": max(request.parallel, 1),
                "dry_run": request.dryRun,
                "root_directory": info.root_directory,
            },
        }
        environment = in_environment_of(python, inherited_environment()) | {
            "PULUMI_CONFIG": json.dumps(dict(request.config)),
            "PULUMI_CONFIG_SECRET_KEYS": json.dumps(list(request.configSecretKeys)),
        }
        return self._start(python, spec, request.pwd, environment, output=None)

    def _start(
        self, python: Path, spec: Mapping[str, Any], directory: str, environment: Mapping[str, str], output: int | None
    ) -> Child:
        return self._children.add(Child(python, spec, directory=directory, environment=environment, output=output))

    def _relay(self, child: Child) -> Iterator[Output]:
        """Lines of both streams as they come, then the exit code."""
        lines: queue.SimpleQueue[Output | None] = queue.SimpleQueue()

        def read(stream: IO[bytes], wrap: Callable[[bytes], Output]) -> None:
            for line in stream:
                lines.put(wrap(line))
            lines.put(None)

        assert child.process.stdout is not None and child.process.stderr is not None
        wrapped = (
            (child.process.stdout, lambda b: Output(stdout=b)),
            (child.process.stderr, lambda b: Output(stderr=b)),
        )
        for stream, wrap in wrapped:
            threading.Thread(target=read, args=(stream, wrap), daemon=True).start()
        open_streams = len(wrapped)
        try:
            while open_streams:
                line = lines.get()
                if line is None:
                    open_streams -= 1
                else:
                    yield line
            code = child.wait()
            yield Output(exitcode=0 if child.stopped else code)
        finally:
            child.stop()
            self._children.remove(child)


@contextmanager
def _told_as(context: grpc.ServicerContext) -> Iterator[None]:
    """Foreseeable failures become the call's error text."""
    try:
        yield
    except OSError as error:
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, _readable(error, {}))


def _readable(error: OSError, config: Mapping[str, str]) -> str:
    if error.errno == errno.E2BIG:
        size = len(json.dumps(dict(config))) // 1024
        return (
            f"the configuration of this project is too large: {size} KiB, and Linux passes at most 128 KiB to a program. "
            "Move large lists (the inventory) into a file of their own and name that file in the configuration."
        )
    return str(error)


def _python(info: language_pb2.ProgramInfo) -> Path:
    return interpreter(json_format.MessageToDict(info.options), Path(info.root_directory))


def _plugin_spec(request: language_pb2.RunPluginRequest) -> dict[str, Any]:
    """A plugin directory is run as it is when it has a `__main__.py`, else as the package that its pyproject names."""
    directory = Path(request.info.program_directory)
    path = directory / (request.info.entry_point or ".")
    if path.is_file() or (path / "__main__.py").is_file():
        return {"kind": "path", "path": str(path), "args": list(request.args)}
    described = directory / "pyproject.toml"
    if described.is_file():
        name = tomllib.loads(described.read_text()).get("project", {}).get("name", "")
        if name:
            return {"kind": "module", "name": "pulumi.run.plugin", "args": [name, *request.args]}
    raise FileNotFoundError(
        f"{directory} is no Python plugin: it has neither __main__.py nor a pyproject.toml with a name"
    )


def _first_line(child: Child) -> int:
    """The port that a pack prints first. Raises RuntimeError with what it said instead."""
    assert child.process.stdout is not None and child.process.stderr is not None
    line = child.process.stdout.readline()
    try:
        return int(line)
    except ValueError:
        child.stop()
        said = (line + child.process.stdout.read() + child.process.stderr.read()).decode(errors="replace").strip()
        raise RuntimeError(f"the policy pack did not start; it said:\n{said or 'nothing'}") from None


def serve(engine: str) -> None:
    """Serve until the engine says goodbye (SIGINT or SIGTERM) or is gone; leaves no child behind."""
    # Calls that this host does not implement are an answer, not an accident to print.
    logging.getLogger("grpc").setLevel(logging.CRITICAL + 1)
    alive, over = EngineWatch(address=engine_address([engine])), threading.Event()

    def leave(number: int, frame: FrameType | None) -> None:
        over.set()

    def watch() -> None:
        alive.wait()
        over.set()

    signal.signal(signal.SIGINT, leave)
    signal.signal(signal.SIGTERM, leave)
    children = Children()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=64), options=_GRPC_CHANNEL_OPTIONS)
    language_pb2_grpc.add_LanguageRuntimeServicer_to_server(LanguageHost(engine, children), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    threading.Thread(target=watch, name="engine-watch", daemon=True).start()
    print(port, flush=True)
    over.wait()
    children.stop_all()
    server.stop(0)
    # Threads that still wait for a dead engine must not keep the process.
    os._exit(0)


if __name__ == "__main__":
    serve(sys.argv[-1])
