"""What a worker's client says to the next sidecar, when the one that it had is gone."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from distop.executor.host.sidecar_folder import SidecarFolder
from distop.executor.sidecar import client as sidecar_client
from distop.executor.sidecar import wire
from distop.executor.sidecar.client import SidecarClient
from distop.executor.task.session import TaskSession
from support.services.executing import short_folder

WAIT_S = 60.0


class Spoken:
    """The sidecar's end of one connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        connection.settimeout(WAIT_S)
        self._frames = wire.Frames(wire.FromTask)
        self._heard = list[Any]()

    def hear(self) -> Any:
        """The next message."""
        while not self._heard:
            data = self.connection.recv(1 << 16)
            assert data, "the client has hung up"
            self._heard += self._frames.feed(data)
        return self._heard.pop(0)

    def say(self, message: wire.FromSidecar) -> None:
        self.connection.sendall(wire.frame(message))


class Sidecars:
    """One sidecar after the other at the same socket; a client that is connected to the first one."""

    def __init__(self, folder: SidecarFolder) -> None:
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.settimeout(WAIT_S)
        self._listening.bind(str(folder.socket))
        self._listening.listen(8)
        self.client = SidecarClient(folder, {})

    def accept(self) -> Spoken:
        return Spoken(self._listening.accept()[0])

    def close(self) -> None:
        self.client.close()
        self._listening.close()


@pytest.fixture
def sidecars() -> Iterator[Sidecars]:
    with short_folder() as folder:
        served = Sidecars(SidecarFolder(Path(folder)).prepare())
        yield served
        served.close()


def owner(sidecars: Sidecars) -> tuple[TaskSession[str], Spoken]:
    """A task that owns job 0 through the first sidecar, and the connection to the second one, which has been
    asked to move the claim."""
    first = sidecars.accept()
    session = TaskSession[str](sidecars.client, "t/noop/1", 7, claims=True)
    with ThreadPoolExecutor(1) as pool:
        claimed = pool.submit(session.claim, "0", "a")
        assert isinstance(first.hear(), wire.Attach)
        first.say(wire.ClaimAnswer(first.hear().number, 8, None, 1e12))
        claimed.result(WAIT_S)
    first.connection.close()
    return session, sidecars.accept()


def asked_to_move(second: Spoken) -> tuple[wire.Attach, wire.ClaimRequest]:
    attach, claim = second.hear(), second.hear()
    assert isinstance(attach, wire.Attach)
    assert isinstance(claim, wire.ClaimRequest)
    assert claim.held == 8
    return attach, claim


def test_a_task_that_ends_while_its_claim_moves_leaves_no_claim(sidecars: Sidecars) -> None:
    """The next attempt, in the same worker process, would wait for it without end."""
    session, second = owner(sidecars)
    attach, claim = asked_to_move(second)
    session.close()
    second.say(wire.ClaimAnswer(claim.number, 8, None, 1e12))
    assert second.hear() == wire.Detach(attach.run)


def test_a_sidecar_that_is_halted_while_claims_move_to_it_is_given_up(
    sidecars: Sidecars, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor gets them."""
    monkeypatch.setattr(sidecar_client, "ANSWER_TIMEOUT_S", 0.2)
    session, second = owner(sidecars)
    asked_to_move(second)
    _, claim = asked_to_move(third := sidecars.accept())
    monkeypatch.undo()
    third.say(wire.ClaimAnswer(claim.number, 8, None, 1e12))
    session.close()
    assert isinstance(third.hear(), wire.Detach)
