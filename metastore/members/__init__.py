"""An installation and its members: live processes, the leases they hold, and who leads a table."""
