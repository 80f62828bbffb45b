"""Stands between the engine and a Python policy pack until the engine has said which stack it is about.

A pack reads project, stack and configuration from its environment when it starts, but the engine tells them only in a call
(`ConfigureStack`) to the running plugin. So the engine is given the address of this gate at once; the pack starts with
that call, and from then on every call is handed through as the bytes it is.
"""

import json
import threading
from collections.abc import Callable, Mapping
from concurrent import futures

import grpc  # type: ignore[import-untyped]
from pulumi.runtime._grpc_settings import _GRPC_CHANNEL_OPTIONS
from pulumi.runtime.proto import analyzer_pb2

_SERVICE = "/pulumirpc.Analyzer/"


class PolicyGate:
    """A gRPC server on loopback; `start` runs the pack with additional environment and returns its port.

    `start` raises RuntimeError with a readable message when the pack does not come up.
    """

    def __init__(self, start: Callable[[Mapping[str, str]], int]) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._server = grpc.server(futures.ThreadPoolExecutor(max_workers=16), options=_GRPC_CHANNEL_OPTIONS)
        self._server.add_generic_rpc_handlers((_Handler(self),))
        self.port: int = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def close(self) -> None:
        self._server.stop(0)
        if self._channel is not None:
            self._channel.close()

    def call(self, method: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Answer one call: the handshake here, everything else in the pack."""
        if method == _SERVICE + "Handshake":
            return analyzer_pb2.AnalyzerHandshakeResponse().SerializeToString()
        environment = stack_environment(request) if method == _SERVICE + "ConfigureStack" else {}
        try:
            forward = self._pack(environment).unary_unary(method)
            answer = forward.future(request)
            context.add_callback(answer.cancel)
            return bytes(answer.result())
        except RuntimeError as error:
            code, text = grpc.StatusCode.FAILED_PRECONDITION, str(error)
        except grpc.FutureCancelledError:
            code, text = grpc.StatusCode.CANCELLED, "cancelled"
        except grpc.RpcError as error:
            code, text = error.code(), error.details()
        context.abort(code, text)
        raise AssertionError("abort raises")

    def _pack(self, environment: Mapping[str, str]) -> grpc.Channel:
        with self._lock:
            if self._channel is None:
                port = self._start(environment)
                self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=_GRPC_CHANNEL_OPTIONS)
            return self._channel


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, gate: PolicyGate) -> None:
        self._gate = gate

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if not details.method.startswith(_SERVICE):
            return None
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: self._gate.call(details.method, request, context)
        )


def stack_environment(request: bytes) -> dict[str, str]:
    """What `pulumi.policy` and `pulumi.Config` read in a pack, from a serialized `AnalyzerStackConfigureRequest`."""
    told = analyzer_pb2.AnalyzerStackConfigureRequest.FromString(request)
    return {
        "PULUMI_PROJECT": told.project,
        "PULUMI_STACK": told.stack,
        "PULUMI_ORGANIZATION": told.organization,
        "PULUMI_DRY_RUN": "true" if told.dry_run else "false",
        "PULUMI_CONFIG": json.dumps(dict(told.config)),
        "PULUMI_CONFIG_SECRET_KEYS": json.dumps(list(told.config_secret_keys)),
    }
