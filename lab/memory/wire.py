"""What the API server in memory says, as bytes: objects, lists, events, refusals."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

import httpx

from cozystack_iac.kube.client import Object, Refused
from lab.memory.api import Target

_JSON = {"Content-Type": "application/json"}
_encode = json.JSONEncoder(separators=(",", ":")).encode


class Encoder:
    """Objects as JSON. Nobody writes into a stored one, so every version of it is written down once, whoever asks for it."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, bytes]] = {}  # uid -> version, fields

    def stored(self, obj: Object) -> bytes:
        """An object that travels on its own: with kind and apiVersion."""
        return f'{{"apiVersion":"{obj["apiVersion"]}","kind":"{obj["kind"]}",'.encode() + self._fields(obj)

    def list(self, target: Target, objects: Collection[Object], version: int) -> bytes:
        """The items of a list come without kind and apiVersion, as those of the built-in kinds do."""
        head = {"kind": f"{target.kind.name}List", "apiVersion": target.kind.api_version(target.version)}
        start = _encode({**head, "metadata": {"resourceVersion": str(version)}})[:-1]
        return start.encode() + b',"items":[' + b",".join(b"{" + self._fields(obj) for obj in objects) + b"]}"

    def event(self, kind: str, obj: Object) -> bytes:
        return f'{{"type":"{kind}","object":'.encode() + self.stored(obj) + b"}\n"

    def _fields(self, obj: Object) -> bytes:
        """All but kind and apiVersion, which depend on who asks, and the closing brace."""
        metadata = obj["metadata"]
        version, fields = self._known.get(metadata["uid"], ("", b""))
        if version != metadata["resourceVersion"]:
            rest = {key: value for key, value in obj.items() if key not in ("apiVersion", "kind")}
            version, fields = metadata["resourceVersion"], _encode(rest)[1:].encode()
            self._known[metadata["uid"]] = version, fields
        return fields


def failure(refused: Refused) -> Object:
    """The Status of a refusal."""
    said = {"message": refused.message, "reason": refused.reason, "code": refused.status}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", **said}


SUCCESS: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


def encoded(value: Object) -> bytes:
    return _encode(value).encode()


def response(status: int, body: bytes, headers: Mapping[str, str] = _JSON) -> httpx.Response:
    """As it comes from a network: the client has to read it."""
    return httpx.Response(status, headers=headers, stream=httpx.ByteStream(body))
