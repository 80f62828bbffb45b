"""A single question goes on through an outage of the API server, and takes an answer for an answer."""

from __future__ import annotations

import pytest

from cozystack_iac.kube.client import KubeError, Refused, Unavailable, Unreachable
from cozystack_iac.kube.outage import outlasting

pytestmark = pytest.mark.pace(looks=0.01)

AWAY: tuple[KubeError, ...] = (Unreachable("refused"), Unavailable(503, "ServiceUnavailable", "no endpoint"))


class Server:
    def __init__(self, *answers: KubeError | str) -> None:
        self.answers, self.asked = list(answers), 0

    async def ask(self) -> str:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, KubeError):
            raise answer
        return answer


async def test_a_question_is_asked_again_until_there_is_an_answer() -> None:
    said: list[str] = []
    assert await outlasting(Server(*AWAY, "fine").ask, 5, said.append) == "fine"
    assert said == [f"waiting for the API server ({error})" for error in AWAY]


@pytest.mark.parametrize("away", AWAY)
async def test_an_outage_that_does_not_end_is_unknown(away: KubeError) -> None:
    server = Server(away)
    with pytest.raises(type(away)):
        await outlasting(server.ask, 0.1, lambda _: None)
    assert server.asked > 1


async def test_a_refusal_is_an_answer() -> None:
    server = Server(Refused(403, "Forbidden", "no"))
    with pytest.raises(Refused):
        await outlasting(server.ask, 5, lambda _: None)
    assert server.asked == 1
