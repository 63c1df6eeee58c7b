"""Everything that knows etcd: keys, records, transactions, watches, leases, leadership."""
