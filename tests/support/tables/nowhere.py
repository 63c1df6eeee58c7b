"""Where tables are that hold nothing."""

import tempfile
from uuid import uuid4


def nowhere() -> str:
    """A folder that no other table has had: what runs on the table may leave a marker or a trace there."""
    return f"{tempfile.gettempdir()}/nowhere/{uuid4().hex}"
