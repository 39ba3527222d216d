"""Bugs that systems like this one have had, planted on purpose: some test must notice each."""
