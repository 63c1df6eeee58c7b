"""Members of an installation: live processes, the leases they hold, and the election of a table's leader."""
