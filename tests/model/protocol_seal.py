"""Rule 18 in the model's terms: the length of a seal, from three answers. Written from the rule, not from the code:
a test compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.model.protocol_state import ABSENT, DOUBTFUL, LENGTH, NONE, SEALED, Answer


def choose_length(
    answers: Sequence[Answer], *, dead: Sequence[bool], end: int = NONE, without: str = ""
) -> tuple[int, bool] | None:
    """(L, whether all took part); None: unavailable."""
    sealed = [answer[1] for answer in answers if answer and answer[0] == SEALED]
    known = max([end, 0, *(answer[2] for answer in answers if answer and without != "18-committed")])
    if sealed:
        return (sealed[0], False) if sealed[0] >= known else None
    floor = 0 if without in ("18-short", "17-disk-and-18-short") else known
    trusted_kinds = (LENGTH, DOUBTFUL) if without == "18-doubtful" else (LENGTH,)
    trusted = [answer[1] for answer in answers if answer and answer[0] in trusted_kinds and answer[1] >= floor]
    if without == "18-absent":  # an error counts as length 0
        trusted += [0 for answer in answers if answer and answer[0] == ABSENT]
    if len(trusted) == len(answers):
        return min(trusted), True
    valid = [answer[1] for answer in answers if answer and answer[0] in (LENGTH, DOUBTFUL)]
    longest = max(valid, default=NONE)
    if end != NONE and without != "18-end":
        return (known, False) if longest >= known else None
    silent = [not answer and not is_dead for answer, is_dead in zip(answers, dead, strict=True)]
    unexcused = any(silent) or any(answer and answer[0] != LENGTH for answer in answers)
    unexcused = unexcused or len(trusted) < sum(bool(answer) for answer in answers)
    if len(trusted) >= 2 or (len(trusted) == 1 and (not unexcused or without == "18-two")):
        return min(trusted), False
    if all(answer and answer[0] == DOUBTFUL for answer in answers):
        best = min(valid) if without == "18-longest" else longest
        return (best, False) if best >= known or without == "18-longest" else None
    return None
