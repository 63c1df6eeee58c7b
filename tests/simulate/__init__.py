"""Whole coordinators and executors in one thread, with a clock and a source of chance of their own."""

from simulate import sources

sources.install()
