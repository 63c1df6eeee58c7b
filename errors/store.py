"""A problem of etcd, a lease or a record in it."""

from __future__ import annotations

from distop.errors.base import DistopError, Exhausted, Kind, PreconditionFailed, Unavailable


class EtcdUnavailable(Unavailable):
    """etcd does not answer."""

    code = "ETCD_UNAVAILABLE"
    default_hint = "check the etcd endpoints and that the cluster has a leader"


class EtcdDenied(EtcdUnavailable):
    """etcd rejects this user, password or role."""

    code = "ETCD_DENIED"
    kind = Kind.DENIED
    retryable = False
    default_hint = "check user, password and role"


class OutcomeUnknown(Unavailable):
    """A write was sent and its reply was lost; reading back did not show whether it happened."""

    code = "OUTCOME_UNKNOWN"
    default_hint = "repeat the call: it is idempotent with the same request id"


class Busy(Exhausted):
    """The limit of concurrent work is reached."""

    code = "BUSY"
    default_hint = "try again in a moment"


class EtcdOutOfSpace(OutcomeUnknown):
    """etcd is out of space and refuses writes.

    Even for writes that it has applied: for those in progress when its quota is reached it reports the error
    although they happened (etcd 3.4 and 3.5: ``quotaApplierV3`` applies first and refuses then). Conclude
    nothing from it.
    """

    code = "ETCD_OUT_OF_SPACE"
    kind = Kind.EXHAUSTED
    default_hint = "compact and defragment etcd, then disarm the alarm: etcdctl alarm disarm"


class CorruptRecord(DistopError):
    """This version of distop cannot parse a value in etcd."""

    code = "CORRUPT_RECORD"


class UnsupportedType(CorruptRecord):
    """The table has a column of a type that distop does not read."""

    code = "UNSUPPORTED_TYPE"
    kind = Kind.PRECONDITION
    default_hint = "use the table with the program that wrote it, or drop the column there"


class Compacted(DistopError):
    """The requested revision is no longer in etcd's history."""

    code = "COMPACTED"
    kind = Kind.PRECONDITION
    retryable = True
    default_hint = "restart from the present state"


class LeadershipLost(DistopError):
    """This coordinator is no longer the leader of the table."""

    code = "LEADERSHIP_LOST"
    kind = Kind.UNAVAILABLE
    retryable = True


class LeaseLost(DistopError):
    """The lease of this process has expired."""

    code = "LEASE_LOST"
    kind = Kind.UNAVAILABLE
    retryable = True


OF_THE_WORLD: tuple[type[DistopError], ...] = (
    EtcdUnavailable,
    OutcomeUnknown,
    EtcdOutOfSpace,
    Busy,
    LeadershipLost,
    LeaseLost,
)
"""Errors that say nothing about the operation or batch that meets them: retried, and not counted."""


class Forked(PreconditionFailed):
    """This process was forked from one that already uses distop, and cannot connect."""

    code = "FORKED"
    default_hint = "start processes without fork, as multiprocessing.get_context('spawn') does"
