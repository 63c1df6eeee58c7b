"""All access to etcd: keys, records, transactions, watches, leases, leadership."""
