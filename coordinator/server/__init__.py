"""Sockets, sessions, dispatch, limits, shutdown, telemetry."""
