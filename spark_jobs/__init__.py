"""The operation types that come with distop."""
