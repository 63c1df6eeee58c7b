"""One worker host: where its sidecar lives, the scratch folders of attempts, and sweeping both."""
