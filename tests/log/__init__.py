"""Tests of the offsets log."""
