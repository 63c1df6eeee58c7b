"""Access to etcd: the client, its channels and settings, transactions as values, watches,
and the meaning of failures.

Nothing here knows tables or operations. From outside: ``client``, ``config``, ``txn``, ``watch``, ``update``.
"""

import distop.process.forks  # noqa: F401  # before gRPC is imported
