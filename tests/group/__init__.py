"""Tests of the pure group core."""
