"""Speaking to etcd: the client, its channels and settings, transactions as values, watches,
and what failures mean.

Nothing here knows tables or operations. From outside: ``client``, ``config``, ``txn``, ``watch``, ``update``.
"""
