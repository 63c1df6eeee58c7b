"""Whole tables: which there are, audit trail, schedules, watermarks, and the claim to the location."""
