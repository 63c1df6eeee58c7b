"""A type that writes batches to branches as a user's would: it names the types that publish and drop them."""

from distop.operations import Staging
from distop.spark_jobs.ingest.operation import Ingest
from distop.spark_jobs.maintenance.branches import DropBranch, PublishBranch


class Branching(Ingest):
    """An ingest whose staged branches are published by :class:`BranchIn`."""

    type = "branching"
    staging = Staging(publish="branch_in", drop="branch_off")


class BranchIn(PublishBranch):
    """Publishes a branch."""

    type = "branch_in"


class BranchOff(DropBranch):
    """Drops a branch."""

    type = "branch_off"


BRANCHING = tuple(f"{__name__}:{name}" for name in ("Branching", "BranchIn", "BranchOff"))
