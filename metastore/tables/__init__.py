"""Whole tables: audit trail, schedules, published indexes, the claim to the location, and dropping."""
