"""What deserves an alert, and its delivery to a webhook."""
