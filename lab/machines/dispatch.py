"""From a gRPC stream to the function that answers it: admission, scripted faults, node routing, then the call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpclib import GRPCError, Status
from grpclib.const import Cardinality, Handler

from cozystack_iac.talos.api import cluster_pb2, lifecycle_pb2, machine_pb2, state_pb2, storage_pb2, time_pb2
from lab.machines.call import READER, Call, admit, refuse, targets
from lab.scenario import Answer

if TYPE_CHECKING:
    from lab.machines.node import Node

Stream = Any  # grpclib.server.Stream of whatever messages the method has


@dataclass(frozen=True)
class Method:
    service: str
    name: str
    streams: bool
    request: type[Message]
    reply: type[Message]


def _methods(*files: FileDescriptor) -> Mapping[str, Method]:
    found: dict[str, Method] = {}
    for file in files:
        for service in file.services_by_name.values():
            for method in service.methods:
                request, reply = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
                entry = Method(service.full_name, method.name, method.server_streaming, request, reply)
                found[f"/{service.full_name}/{method.name}"] = entry
    return found


METHODS = _methods(
    machine_pb2.DESCRIPTOR,
    lifecycle_pb2.DESCRIPTOR,
    storage_pb2.DESCRIPTOR,
    cluster_pb2.DESCRIPTOR,
    time_pb2.DESCRIPTOR,
    state_pb2.DESCRIPTOR,
)
SERVICES = frozenset(method.service for method in METHODS.values())


class Calls(Mapping[str, Handler]):
    """Path -> handler for one machine, made when first called. Unknown paths are answered as grpc-go does."""

    def __init__(self, node: Node, answers: Mapping[str, Any]) -> None:
        self._node = node
        self._answers = answers  # service -> object with one coroutine or async generator per method
        self._made: dict[str, Handler] = {}

    def __getitem__(self, path: str) -> Handler:
        if path not in self._made:
            self._made[path] = self._handler(path)
        return self._made[path]

    def __iter__(self) -> Any:
        return iter(METHODS)

    def __len__(self) -> int:
        return len(METHODS)

    def _handler(self, path: str) -> Handler:
        method = METHODS.get(path)
        if method is None:
            return Handler(_unknown(path), Cardinality.UNARY_UNARY, Empty, Empty)
        cardinality = Cardinality.UNARY_STREAM if method.streams else Cardinality.UNARY_UNARY

        async def serve(stream: Stream) -> None:
            await self._serve(method, stream)

        return Handler(serve, cardinality, method.request, method.reply)

    async def _serve(self, method: Method, stream: Stream) -> None:
        request = await stream.recv_message()
        if request is None:
            refuse(Status.INTERNAL, "the request has no message")
        call = Call(self._node, method.service, method.name, _roles(stream, self._node))
        scripted = self._node.world.faults.answer(self._node.state.subject, method.name)
        if scripted is not None and not scripted.performed:
            await _answer(scripted)
        admit(call, request.ByteSize())
        if self._node.state.spec.thinks:
            await self._node.world.clock.sleep(self._node.state.spec.thinks)
        metadata = stream.metadata
        wanted = targets(call, metadata.getall("node", []), metadata.getall("nodes", []))
        many = bool(metadata.getall("nodes", []))
        async for reply in self._replies(method, call, request, wanted, many):
            if scripted is not None:
                await _answer(scripted)
            await stream.send_message(reply)

    async def _replies(
        self, method: Method, call: Call, request: Message, wanted: list[str] | None, many: bool
    ) -> AsyncIterator[Message]:
        if wanted is None:
            async for reply in self.invoke(method, call, request):
                yield reply
            return
        merged = method.reply()
        for name in wanted:
            async for reply in self._forwarded(method, call, request, name, many):
                if many and not method.streams:
                    merged.MergeFrom(reply)
                else:
                    yield reply
        if many and not method.streams:
            yield merged

    async def _forwarded(
        self, method: Method, call: Call, request: Message, name: str, many: bool
    ) -> AsyncIterator[Message]:
        try:
            target = self._node.named(name)
            if target is None:
                refuse(Status.UNAVAILABLE, _refused_dial(name, self._node.port))
            async for reply in target.calls.invoke(method, replace(call, node=target), request):
                yield _labelled(reply, name) if many else reply
        except GRPCError as error:
            if not many:
                raise
            yield _failed(method, name, error)

    async def invoke(self, method: Method, call: Call, request: Message) -> AsyncIterator[Message]:
        """The machine's own answer, message by message."""
        function: Callable[[Call, Message], Any] | None = getattr(self._answers.get(method.service), method.name, None)
        if function is None:
            refuse(Status.UNIMPLEMENTED, f"method {method.name} not implemented")
        if method.streams:
            async for reply in function(call, request):
                yield reply
        else:
            yield await function(call, request)


def _roles(stream: Stream, node: Node) -> frozenset[str]:
    if node.in_maintenance:
        return frozenset({READER})
    certificate = stream.peer.cert() or {}
    names = [part for part in certificate.get("subject", ()) for part in part]
    return frozenset(value for key, value in names if key == "organizationName")


async def _answer(answer: Answer) -> None:
    if answer.code == "HANG":
        await asyncio.Event().wait()
    raise GRPCError(Status[answer.code], answer.message)


def _unknown(path: str) -> Callable[[Stream], Any]:
    service, _, method = path.removeprefix("/").partition("/")

    async def serve(stream: Stream) -> None:
        await stream.recv_message()
        if service not in SERVICES:
            refuse(Status.UNIMPLEMENTED, f"unknown service {service}")
        refuse(Status.UNIMPLEMENTED, f"unknown method {method} for service {service}")

    return serve


def _labelled(reply: Any, hostname: str) -> Message:
    """The reply as the one-to-many proxy passes it on: with the node's name in the metadata."""
    copy = type(reply)()
    copy.CopyFrom(reply)
    for message in copy.messages if "messages" in copy.DESCRIPTOR.fields_by_name else [copy]:
        message.metadata.hostname = hostname
    return copy  # type: ignore[no-any-return]


def _failed(method: Method, hostname: str, error: GRPCError) -> Message:
    reply: Any = method.reply()
    message = reply.messages.add() if "messages" in reply.DESCRIPTOR.fields_by_name else reply
    message.metadata.hostname = hostname
    code = "".join(word.capitalize() for word in error.status.name.split("_"))
    message.metadata.error = f"rpc error: code = {code} desc = {error.message}"
    message.metadata.status.code = error.status.value
    message.metadata.status.message = error.message or ""
    return reply  # type: ignore[no-any-return]


def _refused_dial(name: str, port: int) -> str:
    dial = f"dial tcp {name}:{port}: connect: connection refused"
    return f'connection error: desc = "transport: Error while dialing: {dial}"'
