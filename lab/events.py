"""The append-only log of everything that happened in the lab: tests assert on it, simulators react to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from lab.clock import Clock


@dataclass(frozen=True)
class Event:
    """`time` is in real-life seconds since the lab's start, `seq` counts from 1. `data` is plain JSON without secrets."""

    seq: int
    time: float
    subject: str
    what: str
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """How faults and expectations name this event: "<subject> <what>"."""
        return f"{self.subject} {self.what}"

    def as_json(self) -> str:
        body = {"seq": self.seq, "time": round(self.time, 3), "subject": self.subject, "what": self.what}
        return json.dumps(body | ({"data": self.data} if self.data else {}), default=str)


class Signal:
    """Wakes everybody who waits for a change; carries nothing."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)


Predicate = Callable[[Event], bool]


class EventLog:
    """Append-only. `sink` gets one JSON line per event (the supervisor gives it the file); `on` reacts synchronously."""

    def __init__(self, clock: Clock, sink: Callable[[str], None] | None = None) -> None:
        self._clock = clock
        self._sink = sink
        self._events: list[Event] = []
        self._reactions: list[Callable[[Event], None]] = []
        self._grown = Signal()

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(self._events)

    def since(self, seq: int) -> list[Event]:
        """Events after the one numbered `seq`; 0 gives all."""
        return self._events[max(seq, 0) :]

    def record(self, subject: str, what: str, **data: Any) -> Event:
        event = Event(len(self._events) + 1, self._clock.now(), subject, what, data)
        self._events.append(event)
        if self._sink is not None:
            self._sink(event.as_json())
        for reaction in tuple(self._reactions):
            reaction(event)
        self._grown.notify()
        return event

    def on(self, reaction: Callable[[Event], None]) -> None:
        """Call `reaction` for every future event, in order, before any waiter wakes."""
        self._reactions.append(reaction)

    def off(self, reaction: Callable[[Event], None]) -> None:
        """No longer call `reaction`."""
        self._reactions.remove(reaction)

    def find(self, subject: str | None = None, what: str | None = None) -> list[Event]:
        return [e for e in self._events if subject in (None, e.subject) and what in (None, e.what)]

    def has(self, subject: str, what: str) -> bool:
        return bool(self.find(subject, what))

    async def follow(self, since: int = 0) -> AsyncIterator[Event]:
        """Every event after `since`, first those already there, then as they happen. Ends only by cancellation."""
        while True:
            for event in self.since(since):
                since = event.seq
                yield event
            if since == len(self._events):
                await self._grown.wait()

    async def wait_for(self, predicate: Predicate, timeout_s: float | None = None) -> Event:
        """The first event, past or future, that satisfies. `timeout_s` is wall time; raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            async for event in self.follow():
                if predicate(event):
                    return event
        raise AssertionError("follow() never ends")  # pragma: no cover

    async def happened(self, subject: str, what: str, timeout_s: float | None = None) -> Event:
        return await self.wait_for(lambda e: e.subject == subject and e.what == what, timeout_s)
