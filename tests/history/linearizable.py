"""Is a history linearizable? For each key alone, which is enough: operations on different keys do not touch.

The method is Wing and Gong's search with Lowe's memory of what was seen: take, of all operations that could be next
(begun before any remaining one has ended), one whose answer fits the state; go on; turn back when none fits. A set of
operations together with a state is looked at once.

Invariants: an operation takes effect at one moment between its begin and its end;
            a "maybe" has no end: it takes effect somewhere behind its begin, or last of all, where nobody sees it;
            versions grow with every change of a key, also over a delete;
            a search that grows beyond `STEPS_MAX` is an error of its own, never a pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tests.history.history import READS, Kind, Operation, Outcome

STEPS_MAX = 2_000_000


class NotLinearizable(AssertionError):
    """The message has the key, and the shortest part of its history that is wrong."""


class Undecided(AssertionError):
    """The search grew too large: fewer maybes, or shorter histories of a key, are needed."""


class State(NamedTuple):
    """What a key has. `version` is None while only a maybe could tell; `floor` is the highest version ever known."""

    value: bytes | None = None
    version: int | None = 0
    floor: int = 0


def assert_linearizable(history: Iterable[Operation], *, steps_max: int = STEPS_MAX) -> None:
    by_key: dict[bytes, list[Operation]] = {}
    for operation in history:
        if operation.outcome is not Outcome.NOTHING:
            by_key.setdefault(operation.key, []).append(operation)
    for key, operations in by_key.items():
        operations.sort(key=lambda each: each.begin_s)
        if not linearizable(operations, steps_max=steps_max):
            shown = "\n".join(map(str, shortest_wrong_part(operations, steps_max=steps_max)))
            raise NotLinearizable(f"the history of {key!r} has no order that explains it:\n{shown}")


def shortest_wrong_part(operations: Sequence[Operation], *, steps_max: int) -> list[Operation]:
    """The operations that had begun when it first could not be explained: as a run would have shown it then."""
    ends = sorted({operation.end_s for operation in operations if operation.end_s != float("inf")})
    low, high = 0, len(ends) - 1
    while low < high:
        middle = (low + high) // 2
        if linearizable(list(_until(operations, ends[middle])), steps_max=steps_max):
            low = middle + 1
        else:
            high = middle
    return list(_until(operations, ends[low])) if ends else list(operations)


def _until(operations: Sequence[Operation], end_s: float) -> Iterator[Operation]:
    """The history as it was known at `end_s`: what had not ended yet is a maybe, or, for a read, nothing."""
    for operation in operations:
        if operation.begin_s > end_s:
            continue
        if operation.end_s <= end_s:
            yield operation
        elif operation.kind not in READS:
            yield Operation(
                operation.client,
                operation.kind,
                operation.key,
                operation.begin_s,
                value=operation.value,
                if_absent=operation.if_absent,
                if_version=operation.if_version,
            )


def linearizable(operations: Sequence[Operation], *, steps_max: int = STEPS_MAX) -> bool:
    """Whether the history of one key has an order; operations sorted by their begin."""
    count = len(operations)
    certain = sum(1 << number for number in range(count) if operations[number].outcome is not Outcome.MAYBE)
    seen: set[tuple[int, State]] = set()
    steps = 0
    start = State()
    # Depth first, by hand: a history is longer than Python's stack is deep.
    stack: list[Iterator[tuple[int, State]]] = [_next(operations, 0, start)]
    if not certain:
        return True
    while stack:
        found = next(stack[-1], None)
        if found is None:
            stack.pop()
            continue
        if found in seen:
            continue
        seen.add(found)
        steps += 1
        if steps > steps_max:
            raise Undecided(f"{count} operations on {operations[0].key!r}: more than {steps_max} steps")
        done, state = found
        if done & certain == certain:  # what is left are maybes: last of all, nobody sees them
            return True
        stack.append(_next(operations, done, state))
    return False


def _next(operations: Sequence[Operation], done: int, state: State) -> Iterator[tuple[int, State]]:
    """Each operation that could be next, and the state behind it. Certain ones first: they are most of them."""
    first_end_s = float("inf")
    candidates: list[int] = []
    first = (~done & (done + 1)).bit_length() - 1  # all before it are done
    for number in range(first, len(operations)):
        operation = operations[number]
        if operation.begin_s > first_end_s:
            break  # sorted by begin: none of the others had begun, either
        if not done >> number & 1:
            candidates.append(number)
            first_end_s = min(first_end_s, operation.end_s)
    candidates.sort(key=lambda number: operations[number].outcome is Outcome.MAYBE)
    for number in candidates:
        if operations[number].begin_s <= first_end_s:
            for behind in step(state, operations[number]):
                yield done | 1 << number, behind


def step(state: State, operation: Operation) -> Iterator[State]:
    """The states that this operation may leave behind, if its answer fits."""
    if operation.kind is Kind.GET:
        yield from _read(state, operation.seen_value, operation.seen_version)
    elif operation.kind is Kind.HEAD:
        yield from _found(state, operation.seen_version)
    elif operation.outcome is Outcome.REFUSED:
        yield from _refused(state, operation)
    else:
        for before in _meeting(state, operation):
            if operation.kind is Kind.DELETE:
                told = operation.existed if operation.outcome is Outcome.DONE else None
                if told is not None and told != (before.value is not None):
                    continue
                yield State(None, 0, before.floor)
            elif operation.outcome is Outcome.MAYBE:
                yield State(operation.value, None, before.floor)
            elif operation.seen_version > before.floor:
                yield State(operation.value, operation.seen_version, operation.seen_version)


def _read(state: State, value: bytes | None, version: int) -> Iterator[State]:
    """What a read that saw this leaves: the version is known from then on."""
    if value != state.value:
        return
    if value is None or state.version == version:
        yield state
    elif state.version is None and version > state.floor:
        yield State(value, version, version)


def _found(state: State, version: int) -> Iterator[State]:
    """What is left by somebody who was told this version and no value; 0: there was no object."""
    if not version:
        if state.value is None:
            yield state
    elif state.value is not None:
        yield from _read(state, state.value, version)


def _refused(state: State, operation: Operation) -> Iterator[State]:
    found = operation.seen_version
    if operation.if_absent and state.value is None:
        return
    if operation.if_version is not None and found == operation.if_version:
        return
    yield from _found(state, found)


def _meeting(state: State, operation: Operation) -> Iterator[State]:
    """The state in which the operation's condition is met, with what that tells of its version."""
    if operation.if_absent:
        if state.value is None:
            yield state
    elif operation.if_version is not None:
        if state.value is not None:
            yield from _read(state, state.value, operation.if_version)
    else:
        yield state
