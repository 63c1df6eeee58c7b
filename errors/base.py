"""The root of all errors, and one class for each kind.

Every error a user can meet is a :class:`DistopError`. Its ``code`` never changes once released, its
``retryable`` says whether the same call may succeed later without a change, and its ``hint`` says what
to do. The gRPC status and the exit code of the command line are derived from the error's
:class:`Kind`, here and nowhere else.

Libraries that only some users need are extras of the package, loaded where they are needed
(:func:`library`).
"""

from __future__ import annotations

from enum import Enum
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar


class Kind(Enum):
    """The kind of a failure. The value is ``(gRPC status name, exit code)``."""

    INVALID = ("INVALID_ARGUMENT", 2)
    NOT_FOUND = ("NOT_FOUND", 3)
    EXISTS = ("ALREADY_EXISTS", 4)
    PRECONDITION = ("FAILED_PRECONDITION", 5)
    CONFLICT = ("ABORTED", 6)
    EXHAUSTED = ("RESOURCE_EXHAUSTED", 7)
    UNAVAILABLE = ("UNAVAILABLE", 8)
    DEADLINE = ("DEADLINE_EXCEEDED", 9)
    UNIMPLEMENTED = ("UNIMPLEMENTED", 10)
    DENIED = ("PERMISSION_DENIED", 11)
    UNAUTHENTICATED = ("UNAUTHENTICATED", 12)
    INTERNAL = ("INTERNAL", 13)

    @property
    def grpc_status(self) -> str:
        return str(self.value[0])

    @property
    def exit_code(self) -> int:
        return int(self.value[1])


RETRY_AFTER = "retryAfterS"
"""The detail of an error with the seconds until the next attempt."""

_LONGEST_ADVICE_S = 60.0


class DistopError(Exception):
    """The root of all errors of distop.

    Parameters
    ----------
    message:
        What happened, in one sentence, naming the thing it happened to. Defaults to the class's docstring.
    hint:
        What the user can do about it. Defaults to the class's ``hint``.
    details:
        Facts for programs (strings), such as ``{"field": "paths", "operation": "flights/ingest/17"}``.
    """

    code: ClassVar[str] = "INTERNAL"
    kind: ClassVar[Kind] = Kind.INTERNAL
    retryable: ClassVar[bool] = False
    default_hint: ClassVar[str] = ""

    def __init__(self, message: str = "", *, hint: str = "", details: dict[str, str] | None = None) -> None:
        text = message or (type(self).__doc__ or type(self).__name__).strip().splitlines()[0]
        self.message = encodable(text)
        self.hint = encodable(hint) or self.default_hint
        self.details = {name: encodable(str(value)) for name, value in (details or {}).items()}
        super().__init__(self.message)

    @property
    def retry_after_s(self) -> float:
        """Seconds until the service accepts the next attempt; 0: unknown."""
        try:
            return min(max(float(self.details.get(RETRY_AFTER, "0")), 0.0), _LONGEST_ADVICE_S)
        except ValueError:
            return 0.0

    def fields(self) -> dict[str, Any]:
        """The error as JSON."""
        return {
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            "retryable": self.retryable,
            "details": self.details,
        }

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions cross process boundaries (Spark pickles them): keyword arguments must survive, and so
        # must a code of a newer version, which is stored on the instance.
        return _rebuild, (type(self), self.message, self.hint, self.details), vars(self)


def error_class(code: str, root: type[DistopError] = DistopError) -> type[DistopError] | None:
    """The class with this code, among all that are loaded."""
    if vars(root).get("code") == code:
        return root
    return next((known for child in root.__subclasses__() if (known := error_class(code, child))), None)


def encodable(text: str) -> str:
    """A text that records and messages can hold: names of files that are no text bring lone surrogates."""
    return text.encode(errors="backslashreplace").decode()


def shortened(text: str, limit: int) -> str:
    """At most ``limit`` characters of a text; a truncated one ends with a whole word and an ellipsis."""
    if len(text) <= limit:
        return text
    kept = text[: limit - 1]
    words = kept[: kept.rfind(" ") + 1]
    # A text of one long word, such as a path, is cut anywhere.
    return f"{(words if len(words) > limit // 2 else kept).rstrip()}…"


def _rebuild(cls: type[DistopError], message: str, hint: str, details: dict[str, str]) -> DistopError:
    return cls(message, hint=hint, details=details)


class InvalidArgument(DistopError):
    """The request is malformed."""

    code = "INVALID_ARGUMENT"
    kind = Kind.INVALID


class NotFound(DistopError):
    """The requested thing does not exist."""

    code = "NOT_FOUND"
    kind = Kind.NOT_FOUND


class AlreadyExists(DistopError):
    """The thing to create already exists."""

    code = "ALREADY_EXISTS"
    kind = Kind.EXISTS


class PreconditionFailed(DistopError):
    """The thing is not in a state that allows this."""

    code = "PRECONDITION_FAILED"
    kind = Kind.PRECONDITION


class PermissionDenied(DistopError):
    """The caller may not do this."""

    code = "PERMISSION_DENIED"
    kind = Kind.DENIED
    default_hint = "an admin can grant it: distop grant add WHO ROLE TABLE"


class Unauthenticated(DistopError):
    """The service cannot identify the caller."""

    code = "UNAUTHENTICATED"
    kind = Kind.UNAUTHENTICATED
    default_hint = "say who you are: DISTOP_TOKEN or DISTOP_TOKEN_FILE, or DISTOP_CERT and DISTOP_KEY"


class Conflict(DistopError):
    """The table was changed concurrently."""

    code = "CONFLICT"
    kind = Kind.CONFLICT


class DeadlineExceeded(DistopError):
    """The deadline passed."""

    code = "DEADLINE_EXCEEDED"
    kind = Kind.DEADLINE
    retryable = True


class Unavailable(DistopError):
    """A required service does not answer."""

    code = "UNAVAILABLE"
    kind = Kind.UNAVAILABLE
    retryable = True


class Exhausted(DistopError):
    """A limit is reached."""

    code = "RESOURCE_EXHAUSTED"
    kind = Kind.EXHAUSTED
    retryable = True


class ExtraMissing(PreconditionFailed):
    """An optional part of distop is not installed here."""

    code = "EXTRA_MISSING"


def require(module: str, extra: str, purpose: str) -> None:
    """Make sure that a library of an extra of distop is installed, without loading it.

    Parameters
    ----------
    extra:
        Its name in ``pyproject.toml``, such as ``spark``.
    purpose:
        What needs the library, as the subject of a sentence.

    Raises
    ------
    ExtraMissing
        The library is not installed; says how to install it.
    """
    if find_spec(module) is None:
        package = module.replace("_", "-")
        raise ExtraMissing(
            f"{purpose} needs the package {package}, which is not installed here",
            hint=f"pip install 'distop[{extra}]'",
            details={"extra": extra, "package": package},
        )


def library(module: str, extra: str, purpose: str) -> Any:
    """Import a library of an extra of distop; parameters and errors as of :func:`require`."""
    require(module, extra, purpose)
    return import_module(module)
