"""What can go wrong when a machine is asked something, in the words of this project. Nothing else leaves the client."""

from __future__ import annotations

from enum import StrEnum


class TalosError(Exception):
    """Base of everything the client raises. `address` is the machine, `text` what was seen, without advice."""

    def __init__(self, address: str, text: str) -> None:
        self.address = address
        self.text = text
        super().__init__(f"{address}: {text}")


class Unreachable(TalosError):
    """No route, no answer within the deadline, or the connection broke. Says nothing about what is there."""


class PortClosed(TalosError):
    """Something at the address refused the connection: the host is up, nobody listens on the Talos port."""


class PeerFault(StrEnum):
    """Why the other side is not the peer we meant to talk to."""

    NOT_TLS = "it does not speak TLS"
    NOT_TALOS = "it is not a Talos machine"
    WANTS_CERTIFICATE = "it is already configured and requires a client certificate"
    FOREIGN_CLUSTER = "it belongs to another cluster"
    MAINTENANCE = "it is in maintenance mode and has no configuration"
    FINGERPRINT = "its certificate fingerprint is not the pinned one"
    NAME = "its certificate is not valid for this address"
    CLOCK = "a certificate is not valid at this time; check the clocks"
    OUR_CERTIFICATE = "it rejected our client certificate"


class WrongPeer(TalosError):
    """The TLS layer says that this is not the peer we meant. `fault` says how."""

    def __init__(self, address: str, fault: PeerFault, text: str = "") -> None:
        self.fault = fault
        super().__init__(address, f"{fault.value} ({text})" if text else fault.value)


class Answered(TalosError):
    """The machine understood the question and said no. `code` is the gRPC status number, `text` its message."""

    def __init__(self, address: str, code: int, text: str) -> None:
        self.code = code
        super().__init__(address, text)


class NotAuthorized(Answered):
    """Our role does not allow this call (or the machine is in maintenance mode, where hardly anything is)."""


class NotYet(Answered):
    """The machine is not in a state to do this now; the same call may succeed later."""


class Unsupported(Answered):
    """This machine does not offer the call: its version, its mode or its role."""


class Rejected(Answered):
    """The request itself is wrong; repeating it changes nothing."""


class NotThere(Answered):
    """What was asked for does not exist on this machine."""


class AlreadyDone(Answered):
    """The machine says that this was done before."""


class Failed(Answered):
    """The machine tried and failed, in a way that has no status of its own."""


_BY_CODE: dict[int, type[Answered]] = {
    3: Rejected,  # INVALID_ARGUMENT
    5: NotThere,  # NOT_FOUND
    6: AlreadyDone,  # ALREADY_EXISTS
    7: NotAuthorized,  # PERMISSION_DENIED
    9: NotYet,  # FAILED_PRECONDITION
    10: NotYet,  # ABORTED
    12: Unsupported,  # UNIMPLEMENTED
    14: NotYet,  # UNAVAILABLE: the API runs, the service behind it does not yet
    16: NotAuthorized,  # UNAUTHENTICATED
}
_DEADLINE_EXCEEDED = 4


def answered(address: str, code: int, text: str) -> TalosError:
    """The error for a gRPC status. Decided by the number alone; texts differ between versions."""
    if code == _DEADLINE_EXCEEDED:
        return Unreachable(address, text or "timed out")
    return _BY_CODE.get(code, Failed)(address, code, text)
