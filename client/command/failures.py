"""Turns exceptions into one-sentence messages and exit codes, for stream-client and neve.

    0    success
    1    the cluster refused or failed: unknown stream, too few nodes, no manager …
    2    the command line is wrong
    130  interrupted (Ctrl-C)
    141  the reader of the output has closed it, as in `stream-client read … | head`

Invariants: a user never sees a traceback for a failure of a cluster, a network or a file. Any other exception is a bug
            and is shown with its traceback.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence

from neve.proto import errors
from neve.rpc.entry import INTERRUPTED, PIPE_CLOSED, drop_output

DONE, FAILED, USAGE = 0, 1, 2


class CommandFailed(Exception):
    """An error whose message is shown to the user as it is. `code` is the exit code."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


def sentence(error: BaseException, *, managers: Sequence[str] = ()) -> str:
    """Return the message for an error. `managers` are the addresses that the command uses."""
    asked = ", ".join(managers)
    match error:
        case errors.Unauthenticated():
            hint = "give the right one with --token or NEVE_TOKEN"
            return f"the cluster does not accept the token: {error.detail or 'it is unknown'}; {hint}"
        case errors.WrongCluster():
            text = f"the managers at {asked}" if asked else "the server"
            return f"{text} serve cluster {error.expected!r}, not {error.got!r}; name it with --cluster"
        case errors.ConnectFailed():
            if asked and (not error.address or not set(managers).isdisjoint(error.address.split(", "))):
                kind = "partition" if "partition manager" in error.detail else "stream"
                return f"no {kind} manager can be reached at {asked}; {_connect_hint(error.detail)}"
            reason = f" ({error.detail})" if error.detail else ""
            return f"cannot connect to {error.address}{reason}"
        case errors.NotLeader():
            return "no stream manager leads at the moment; try again, and look at `neve status` if it stays so"
        case errors.NotEnoughNodes():
            detail = f" ({error.detail})" if error.detail else ""
            return f"too few nodes: {error.wanted} are needed, {error.available} can take an extent{detail}"
        case errors.LockHeld():
            owner = f" by {error.owner}" if error.owner else ""
            return f"the stream is being written{owner}; wait until that writer ends, or take it over with --takeover"
        case errors.SealUnavailable():
            return (
                f"extent {error.extent_id} cannot be sealed without a risk to acknowledged data: too few of its "
                "replicas answer; bring their nodes back (docs/operations.md, SealUnavailable)"
            )
        case errors.StreamSealed():
            return f"stream {error.stream_id} is sealed: nothing can be appended to it"
        case errors.QuotaExceeded():
            return f"the quota {error.what} is used up: {error.used} of {error.limit}"
        case errors.NotOwner() | errors.LockedByOther() | errors.LeaseLost():
            detail = f" ({error.detail})" if error.detail else ""
            return f"this writer lost the stream to another one{detail}"
        case errors.AppendOutcomeUnknown():
            detail = f" ({error.detail})" if error.detail else ""
            return (
                f"it is unknown whether the last records are in the stream{detail}; read its end before sending again"
            )
        case errors.ReplicaDamaged():
            return (
                f"extent {error.extent_id}, offset {error.offset}: {error.detail or 'the bytes are damaged'}; "
                "`stream-client read --positions` prints where records begin"
            )
        case errors.OutOfRange():
            return f"extent {error.extent_id} ends at {error.readable}: there is nothing at {error.offset}"
        case errors.Unimplemented():
            text = f"the servers at {asked}" if asked else "the server"
            return f"{text} did not know the call ({error}); check the kind and the version of the servers"
        case errors.DeadlineExceeded():
            return f"no reply in time: {error}"
        case errors.NeveError():
            return str(error)
        case TimeoutError():
            return str(error) or "no answer in time; --timeout gives it longer"
        case OSError():
            name = f"{error.filename}: " if error.filename else ""
            return f"{name}{error.strerror or error}"
    return str(error)


def _connect_hint(detail: str) -> str:
    """Return what the user may have to change if a connection fails."""
    if "CERTIFICATE_VERIFY_FAILED" in detail:
        return "its certificate is not signed by the authority in --ca, or is for another host"
    if "SSL" in detail:
        return "TLS could not be negotiated: check --ca, --cert and --key"
    if "closed" in detail or "Reset" in detail:
        return "it closed the connection: if it speaks TLS, --ca is needed, perhaps --cert and --key too"
    return "is the cluster up, and --managers right?"


def guarded(program: str, run: Callable[[], int], *, managers: Sequence[str] = ()) -> int:
    """Run a command and return its exit code. On failure, prints one sentence on stderr."""
    try:
        code = run()
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        drop_output()
        return PIPE_CLOSED
    except CommandFailed as failure:
        return _say(program, str(failure), failure.code)
    except (errors.NeveError, OSError) as error:  # TimeoutError is an OSError
        return _say(program, sentence(error, managers=managers), FAILED)
    except MemoryError:
        return _say(program, "there is not enough memory for this", FAILED)


def _say(program: str, text: str, code: int) -> int:
    try:
        sys.stdout.flush()  # earlier output comes first
    except OSError:  # closed, or full
        drop_output()
    with contextlib.suppress(OSError):  # stderr may be closed too; the exit code remains
        print(f"{program}: {' '.join(text.split())}", file=sys.stderr)
    return code
