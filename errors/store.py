"""etcd, a lease or a record in it is not as it must be."""

from __future__ import annotations

from distop.errors.base import DistopError, Exhausted, Kind, PreconditionFailed, Unavailable


class EtcdUnavailable(Unavailable):
    """etcd does not answer."""

    code = "ETCD_UNAVAILABLE"
    default_hint = "check the etcd endpoints and that the cluster has a leader"


class EtcdDenied(EtcdUnavailable):
    """etcd does not take this user, password or role."""

    code = "ETCD_DENIED"
    kind = Kind.DENIED
    retryable = False
    default_hint = "check user, password and role"


class OutcomeUnknown(Unavailable):
    """A write was sent and its reply was lost; whether it happened could not be read back."""

    code = "OUTCOME_UNKNOWN"
    default_hint = "ask again: the call is safe to repeat with the same request id"


class Busy(Exhausted):
    """More is under way than is served at one time."""

    code = "BUSY"
    default_hint = "try again in a moment"


class EtcdOutOfSpace(OutcomeUnknown):
    """etcd is out of space and refuses writes.

    Also such as it has made: of those under way when its quota is reached it says so although they happened
    (etcd 3.4 and 3.5: its ``quotaApplierV3`` applies first and refuses then). Nothing may be concluded.
    """

    code = "ETCD_OUT_OF_SPACE"
    kind = Kind.EXHAUSTED
    default_hint = "compact and defragment etcd, then disarm the alarm: etcdctl alarm disarm"


class CorruptRecord(DistopError):
    """A value in etcd is not what this version of distop writes."""

    code = "CORRUPT_RECORD"


class Compacted(DistopError):
    """The revision asked for is no longer in etcd's history."""

    code = "COMPACTED"
    kind = Kind.PRECONDITION
    retryable = True
    default_hint = "begin again from the present state"


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
"""What says nothing about the operation or batch that meets it: it is tried again, and not counted."""


class Forked(PreconditionFailed):
    """This process was forked from one that uses distop already, and cannot reach anybody."""

    code = "FORKED"
    default_hint = "start processes anew instead, as multiprocessing.get_context('spawn') does"
