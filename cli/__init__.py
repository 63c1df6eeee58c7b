"""The ``distop`` command."""
