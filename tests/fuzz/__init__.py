"""Hostile clients of both listeners, by the hundred thousand; every run can be repeated."""
