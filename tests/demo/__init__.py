"""Tests of the demo: its own logic, without processes."""
