"""The web page of a coordinator, and its JSON twin."""
