"""Reaching the service through whichever of its coordinators answers. Imports no other room."""
