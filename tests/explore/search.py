"""Every interleaving of some processes, with faults, up to a depth: a search over states, breadth first.

A state is the content of etcd, the node of each process, the lost requests that may still arrive, and how
many faults are left. A process is deterministic, so its node is given by the answers it has had: the nodes
form a tree for each phase of its program, and real code is run once for each edge of these trees, however
often the search comes by. States that are equal are visited once.
"""

from __future__ import annotations

import gc
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from distop.errors import DistopError, OutcomeUnknown
from distop.metastore.etcd.client import RangePage
from distop.metastore.etcd.txn import Txn, TxnResult
from explore.process import Choose, Env, Look, Process, Read, Request, Until, Write
from explore.store import Store

LIVE_PROCESSES = 3000
"""Processes that are kept where they stand; others are run again from the beginning of their phase."""

MAX_KNOWN = 2_000_000
"""Moves that are remembered, by store and node."""


@dataclass(frozen=True)
class Next:
    """The phase that a program goes on with, and all that it remembers."""

    phase: Callable[..., Coroutine[Any, Any, Any]]
    args: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Actor:
    """A process of the model."""

    name: str
    start: Next
    lease: int = 0
    """Whose keys vanish when it dies, or is taken for dead."""
    mortal: bool = True
    """Whether it may crash."""


class Faults(NamedTuple):
    """How many faults of each kind an execution may have."""

    lost: int = 0
    """Answers to writes that never come. The request may arrive at any later time, or never."""
    crash: int = 0
    """Processes that do nothing any more. Their leases end at any later time."""
    expire: int = 0
    """Leases that end while their process goes on and does not know."""

    def fewer(self, kind: str) -> Faults:
        """One less of a kind."""
        return self._replace(**{kind: getattr(self, kind) - 1})


NO_FAULTS = Faults()


class Laws(Protocol):
    """What must hold. Each method returns what is wrong, or ``None``."""

    def moved(self, before: Store, after: Store, who: str, request: Write) -> str | None:
        """Check one change."""

    def invariant(self, store: Store) -> str | None:
        """Check a content of etcd that may occur at any time."""

    def at_end(self, store: Store, outcomes: dict[str, Any]) -> str | None:
        """Check an end: nothing can happen any more. ``outcomes``: what each process returned or raised."""


class Node:
    """A process after some answers, in a phase: a node of that phase's tree."""

    __slots__ = ("actor", "answer", "before", "children", "index", "outcome", "process", "request", "root")

    def __init__(self, actor: int, root: Next, before: Node | None, answer: Any) -> None:
        self.actor, self.root, self.before, self.answer = actor, root, before, answer
        self.children: dict[Any, Node] = {}
        self.process: Process | None = None
        self.request: Request | None = None
        self.outcome: Any = None
        self.index = 0


class Nodes:
    """All nodes that the search has come to."""

    def __init__(self, actors: Sequence[Actor]) -> None:
        self.actors = actors
        self.all: list[Node] = []
        self._roots: dict[tuple[int, Next], Node] = {}
        self._live: OrderedDict[int, Node] = OrderedDict()

    def begin(self, actor: int, phase: Next) -> Node:
        """The beginning of a phase."""
        root = self._roots.get((actor, phase))
        if root is None:
            process = _started(phase, self.actors[actor].name)
            root = self._roots[actor, phase] = self._arrived(Node(actor, phase, None, None), process)
        return root

    def after(self, node: Node, answer: Any) -> Node:
        """The node of its process once its request has this answer."""
        key = _hashable(answer)
        child = node.children.get(key)
        if child is None:
            process = self._process_at(node)
            process.answer(answer)
            child = self._arrived(Node(node.actor, node.root, node, answer), process)
            node.children[key] = child
        return child

    def _arrived(self, node: Node, process: Process) -> Node:
        node.request = process.request
        if node.request is None:
            try:
                node.outcome = process.result()
            except Exception as error:
                node.outcome = error
            if isinstance(node.outcome, Next):
                return self.begin(node.actor, node.outcome)
        node.index = len(self.all)
        self.all.append(node)
        if node.request is not None:
            self._keep(node, process)
        return node

    def _keep(self, node: Node, process: Process) -> None:
        node.process = process
        self._live[node.index] = node
        if len(self._live) > LIVE_PROCESSES:
            _, oldest = self._live.popitem(last=False)
            if oldest.process is not None:
                oldest.process.end()
                oldest.process = None

    def _process_at(self, node: Node) -> Process:
        process, node.process = node.process, None
        if process is not None:
            del self._live[node.index]
            return process
        answers: list[Any] = []
        at: Node = node
        while at.before is not None:
            answers.append(at.answer)
            at = at.before
        process = _started(at.root, self.actors[at.actor].name)
        for answer in reversed(answers):
            process.answer(answer)
        return process

    def close(self) -> None:
        """Let all processes go."""
        for node in self._live.values():
            if node.process is not None:
                node.process.end()
        self._live.clear()


def _started(phase: Next, who: str) -> Process:
    def main(env: Env) -> Coroutine[Any, Any, Any]:
        return phase.phase(env, *phase.args)

    return Process(main, f"{who} {phase.phase.__qualname__} {phase.args}")


def _hashable(answer: Any) -> Any:
    match answer:
        case RangePage():
            return "page", tuple(answer.kvs), answer.revision, answer.more
        case TxnResult():
            return "txn", answer.succeeded, answer.revision, tuple(map(_hashable, answer.results))
        case Exception():
            return "error", type(answer).__name__
        case list():
            return tuple(answer)
        case _:
            return answer


class State:
    """One state of everything."""

    __slots__ = ("faults", "flights", "key", "last", "nodes", "store", "switches")

    def __init__(
        self,
        store: Store,
        nodes: tuple[int, ...],
        flights: tuple[int, ...],
        faults: Faults,
        last: int = -1,
        switches: int = -1,
    ) -> None:
        self.store, self.nodes, self.flights, self.faults = store, nodes, flights, faults
        self.last, self.switches = last, switches
        self.key = hash((store.key, nodes, flights, faults, last, switches))

    def but(self, nodes: tuple[int, ...], faults: Faults) -> State:
        """The same with other nodes and faults."""
        return State(self.store, nodes, self.flights, faults, self.last, self.switches)


DEAD = -1


class _Move(NamedTuple):
    label: str
    node: int
    store: Store
    wrong: str | None


def _replaced(nodes: tuple[int, ...], index: int, node: int) -> tuple[int, ...]:
    return (*nodes[:index], node, *nodes[index + 1 :])


class Step(NamedTuple):
    """One way to go on from a state."""

    label: str
    """Names it: the same state has one of each."""
    after: State
    wrong: str | None = None


@dataclass
class Violation:
    """Something that must not be, and how it came about."""

    what: str
    schedule: list[str]


@dataclass
class Report:
    """What a search came to."""

    states: int = 0
    stores: int = 0
    """Different contents of etcd."""
    steps: int = 0
    depth: int = 0
    """All states that so many steps lead to were visited."""
    complete: bool = False
    """There are no more."""
    ends: int = 0
    """States in which nothing can happen any more."""
    outcomes: set[tuple[str, ...]] = field(default_factory=set)
    """The outcomes of the processes, one line for each different end."""
    walks: int = 0
    nodes: int = 0
    seconds: float = 0.0
    violations: list[Violation] = field(default_factory=list)


class Search:
    """All that some actors can do to a store.

    Parameters
    ----------
    laws:
        What must hold.
    switches:
        At most so many times another process goes on while the one before it could; -1: any number.
    plant:
        A fault: what becomes of a transaction on its way to etcd.
    """

    def __init__(
        self,
        store: Store,
        actors: Sequence[Actor],
        laws: Laws,
        faults: Faults = NO_FAULTS,
        *,
        switches: int = -1,
        plant: Callable[[Txn], Txn] | None = None,
    ) -> None:
        self._plant = plant
        for actor in actors:
            store = store.grant(actor.lease) if actor.lease else store
        self.actors, self._laws = actors, laws
        self._nodes = Nodes(actors)
        self._known: dict[int, Store] = {}
        self._known_moves: dict[tuple[int, int], Sequence[_Move]] = {}
        self._verdicts: dict[int, str | None] = {}
        begun = tuple(self._nodes.begin(index, actor.start).index for index, actor in enumerate(actors))
        self.first = State(self._same(store), begun, (), faults, switches=switches)

    def run(
        self,
        *,
        max_depth: int = 10_000,
        max_states: int = 5_000_000,
        seconds: float = 1e9,
        max_violations: int = 1,
    ) -> Report:
        """Visit all states, those first that fewest steps lead to."""
        began = time.perf_counter()
        came: dict[int, tuple[int, str]] = {self.first.key: (0, "")}
        report, level = Report(states=1), [self.first]
        gc_was = gc.isenabled()
        gc.disable()  # hundreds of thousands of values, and no cycles among them
        try:
            while level and report.depth < max_depth:
                below: list[State] = []
                for state in level:
                    steps, moving = self.steps(state)
                    for step in steps:
                        report.steps += 1
                        if step.wrong is not None:
                            report.violations.append(
                                Violation(step.wrong, [*self._way(came, state), step.label])
                            )
                        elif step.after.key not in came:
                            came[step.after.key] = (state.key, step.label)
                            below.append(step.after)
                    if not moving:
                        outcomes = self._outcomes(state)
                        report.ends += 1
                        report.outcomes.add(tuple(map(_label, outcomes.values())))
                        if (wrong := self._laws.at_end(state.store, outcomes)) is not None:
                            report.violations.append(Violation(wrong, self._way(came, state)))
                    if (
                        len(report.violations) >= max_violations
                        or len(came) >= max_states
                        or time.perf_counter() - began > seconds
                    ):
                        return report
                level = below
                report.states = len(came)
                report.depth += 1
            report.complete = not level
            return report
        finally:
            report.states, report.seconds = len(came), time.perf_counter() - began
            report.nodes, report.stores = len(self._nodes.all), len(self._known)
            if gc_was:
                gc.enable()

    def walk(self, seed: int, *, seconds: float, report: Report, rarely: float = 0.05) -> Report:
        """Go from the beginning to an end, again and again, whichever way chance takes."""
        rng = random.Random(seed)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end and not report.violations:
            state, schedule = self.first, list[str]()
            while True:
                steps, moving = self.steps(state)
                plain = [step for step in steps if step.after.faults == state.faults]
                some = plain if plain and rng.random() >= rarely else steps
                if not moving:
                    break
                step = rng.choice(some)
                schedule.append(step.label)
                report.steps += 1
                if step.wrong is not None:
                    report.violations.append(Violation(step.wrong, schedule))
                    break
                state = step.after
            report.walks += 1
            if not moving:
                report.ends += 1
                if (wrong := self._laws.at_end(state.store, self._outcomes(state))) is not None:
                    report.violations.append(Violation(wrong, schedule))
        return report

    def close(self) -> None:
        """Let go of all processes."""
        self._nodes.close()

    @staticmethod
    def _way(came: dict[int, tuple[int, str]], state: State) -> list[str]:
        labels: list[str] = []
        key = state.key
        while (before := came[key])[1]:
            labels.append(before[1])
            key = before[0]
        return labels[::-1]

    def explained(self, schedule: Sequence[str]) -> list[str]:
        """A schedule in words: who did what, and what came of it."""
        state, lines = self.first, list[str]()
        for label in schedule:
            step = next(step for step in self.steps(state)[0] if step.label == label)
            name, _, event = label.partition(":")
            node = self._node(state, name)
            text = str(node.request) if node is not None else ""
            if event.startswith("lost"):
                text += "; no answer comes"
            elif event.startswith("arrives"):
                text = "a lost request of it arrives"
            elif event in ("crash", "expire"):
                text = {"crash": "dies", "expire": "its lease ends"}[event]
            elif node is not None and isinstance(node.request, Write) and node.request.changes:
                text += ": done" if step.after.store is not state.store else ": refused"
            lines.append(f"{name:10} {text}")
            state = step.after
            arrived = self._node(state, name)
            if arrived is not None and arrived.request is None:
                lines.append(f"{name:10} ends: {_label(arrived.outcome)}")
        return lines

    def _node(self, state: State, name: str) -> Node | None:
        index = next(index for index, actor in enumerate(self.actors) if actor.name == name)
        at = state.nodes[index]
        return None if at == DEAD else self._nodes.all[at]

    def _outcomes(self, state: State) -> dict[str, Any]:
        return {
            actor.name: (
                "crashed"
                if at == DEAD
                else self._nodes.all[at].outcome
                if self._nodes.all[at].request is None
                else None
            )
            for actor, at in zip(self.actors, state.nodes, strict=True)
        }

    def steps(self, state: State) -> tuple[list[Step], bool]:
        """Everything that can happen next; and whether anything will, if no fault comes."""
        faults, steps = state.faults, list[Step]()
        moves = [() if at == DEAD else self._moves(state.store, at) for at in state.nodes]
        able = state.last >= 0 and bool(moves[state.last])
        for index, own_moves in enumerate(moves):
            switches = state.switches
            if switches >= 0 and able and index != state.last:
                if not switches:
                    continue
                switches -= 1
            last = index if switches >= 0 else -1
            for move in own_moves:
                nodes = _replaced(state.nodes, index, move.node)
                after = State(move.store, nodes, state.flights, faults, last, switches)
                steps.append(Step(move.label, after, move.wrong))
        held = False
        for index, at in enumerate(state.nodes):
            actor = self.actors[index]
            alive = bool(actor.lease) and actor.lease in state.store.leases
            if at == DEAD:
                if alive:
                    held = True
                    steps.append(self._expired(state, index, faults))
                continue
            if self._nodes.all[at].request is None:
                continue
            if faults.lost and moves[index]:
                steps += self._lost(state, index)
            if faults.crash and actor.mortal:
                nodes = _replaced(state.nodes, index, DEAD)
                steps.append(Step(f"{actor.name}:crash", state.but(nodes, faults.fewer("crash"))))
            if faults.expire and alive:
                steps.append(self._expired(state, index, faults.fewer("expire")))
        for number, flight in enumerate(state.flights):
            move = self._arrival(state.store, flight)
            if move.store is not state.store:  # else it is as if it never came
                left = state.flights[:number] + state.flights[number + 1 :]
                after = State(move.store, state.nodes, left, faults, state.last, state.switches)
                steps.append(Step(f"{move.label}:{number}", after, move.wrong))
        return steps, held or any(moves)

    def _moves(self, store: Store, at: int) -> Sequence[_Move]:
        """What a process can do next. Nothing but the store and its node decides about that."""
        key = (store.key, at)
        moves = self._known_moves.get(key)
        if moves is None:
            if len(self._known_moves) > MAX_KNOWN:
                self._known_moves.clear()
            moves = self._known_moves[key] = tuple(self._moved(store, self._nodes.all[at]))
        return moves

    def _moved(self, store: Store, node: Node) -> Iterator[_Move]:
        name, wrong, answer = self.actors[node.actor].name, None, None
        match node.request:
            case None:
                return
            case Read() as read:
                assert not read.revision, "a read of the past follows a read of its process"
                answer = self._read(store, read)
            case Write() as write:
                store, answer, wrong = self._written(store, write, name)
            case Until() as until:
                answer = until.holds(store)
                if answer is None:
                    return
            case other:
                raise AssertionError(f"{other} needs no step")
        for way, after in self._settled(self._nodes.after(node, answer), store, ""):
            violation = wrong
            if violation is None and isinstance(after.outcome, Exception):
                known = isinstance(after.outcome, DistopError)
                violation = None if known else f"{name} raised {after.outcome!r}"
            yield _Move(f"{name}{way}", after.index, store, violation)

    def _lost(self, state: State, index: int) -> Iterator[Step]:
        """The answer to a write never comes, and it may arrive late."""
        at = state.nodes[index]
        node = self._nodes.all[at]
        if not isinstance(node.request, Write) or not node.request.changes:
            return
        after = self._nodes.after(node, OutcomeUnknown("the answer was lost"))
        flights, faults = tuple(sorted((*state.flights, at))), state.faults.fewer("lost")
        for way, settled in self._settled(after, state.store, ""):
            nodes = _replaced(state.nodes, index, settled.index)
            left = State(state.store, nodes, flights, faults, state.last, state.switches)
            yield Step(f"{self.actors[index].name}:lost{way}", left)

    def _arrival(self, store: Store, flight: int) -> _Move:
        key = (store.key, -1 - flight)
        moves = self._known_moves.get(key)
        if moves is None:
            node = self._nodes.all[flight]
            assert isinstance(node.request, Write)
            name = self.actors[node.actor].name
            after, _, wrong = self._written(store, node.request, name)
            moves = self._known_moves[key] = (_Move(f"{name}:arrives", flight, after, wrong),)
        return moves[0]

    def _settled(self, node: Node, store: Store, way: str) -> Iterator[tuple[str, Node]]:
        """Answer what needs no step of its own: nothing that others do makes a difference to it."""
        while True:
            match node.request:
                case Look() as look:
                    node = self._nodes.after(node, look.at(store))
                case Read() as read if read.revision:
                    node = self._nodes.after(node, self._read(store, read))
                case Choose() as choose:
                    for choice in range(choose.ways):
                        yield from self._settled(self._nodes.after(node, choice), store, f"{way}:{choice}")
                    return
                case _:
                    yield way, node
                    return

    @staticmethod
    def _read(store: Store, read: Read) -> RangePage:
        return store.page(read.get, newest_first=read.newest_first, backwards=read.backwards)

    def _written(self, store: Store, request: Write, who: str) -> tuple[Store, Any, str | None]:
        try:
            after, answer = store.apply(self._plant(request.txn) if self._plant else request.txn)
        except DistopError as error:
            return store, error, None
        if after is store:
            return store, answer, None
        after = self._same(after)
        wrong = self._laws.moved(store, after, who, request)
        return after, answer, wrong or self._checked(after)

    def _checked(self, store: Store) -> str | None:
        if store.key not in self._verdicts:
            self._verdicts[store.key] = self._laws.invariant(store)
        return self._verdicts[store.key]

    def _expired(self, state: State, index: int, faults: Faults) -> Step:
        store = self._same(state.store.expire(self.actors[index].lease))
        after = State(store, state.nodes, state.flights, faults, state.last, state.switches)
        return Step(f"{self.actors[index].name}:expire", after, self._checked(store))

    def _same(self, store: Store) -> Store:
        return self._known.setdefault(store.key, store)


def _label(outcome: Any) -> str:
    if isinstance(outcome, DistopError):
        return outcome.code
    return str(outcome)


__all__ = ["Actor", "Faults", "Laws", "Next", "Report", "Search", "Violation"]
