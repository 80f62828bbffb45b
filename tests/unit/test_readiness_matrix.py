"""The matrix that a person sees: one row per package, the worst first."""

from cozystack_iac.readiness.graph import Expected
from cozystack_iac.readiness.matrix import render, rows
from cozystack_iac.readiness.verdicts import State
from tests.hr import Wait, done, rid, running, stalled, waiting

EXPECTED = Expected(
    {
        rid("n/crds"): "Package storage",
        rid("n/operator"): "Package storage",
        rid("n/linstor"): "Package storage",
        rid("n/net"): "Package networking",
        rid("n/dead"): "Package engine",
        rid("n/child"): "n/net",
    }
)
OBJECTS = [
    done("n/crds"),
    running("n/operator"),
    waiting("n/linstor", "n/operator"),
    done("n/net"),
    stalled("n/dead"),
    done("n/child"),
]


def test_a_package_is_what_the_worst_of_its_releases_is() -> None:
    found = rows(Wait(EXPECTED).look(0, OBJECTS).standings)

    assert [(row.package, row.ready, row.total, row.state) for row in found] == [
        ("engine", 0, 1, State.STUCK),
        ("storage", 1, 3, State.PROGRESSING),
        ("n/net", 1, 1, State.READY),
        ("networking", 1, 1, State.READY),
    ]


def test_a_row_says_what_holds_it_up() -> None:
    found = {row.package: row for row in rows(Wait(EXPECTED).look(0, OBJECTS).standings)}

    assert found["storage"].notes == (
        "linstor waiting for its dependencies, blocked by n/operator",
        "operator installing",
    )


def test_reasons_are_shown_and_the_rest_is_counted() -> None:
    objects = [*OBJECTS[:3], waiting("n/net", "n/operator"), *OBJECTS[4:]]
    text = render(Wait(EXPECTED).look(0, objects).standings)

    assert text.splitlines() == [
        "engine    0 of 1   stuck        dead given up by Flux",
        "storage   1 of 3   progressing  linstor waiting for its dependencies; operator installing",
        "1 waiting for others, 1 of 4 packages ready",
    ]


def test_a_long_matrix_is_cut_and_says_so() -> None:
    text = render(Wait(EXPECTED).look(0, OBJECTS).standings, limit=1)

    assert text.splitlines()[1:] == ["1 more like these, 2 of 4 packages ready"]
