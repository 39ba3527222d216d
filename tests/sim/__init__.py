"""The whole system in one process under virtual time; a seed replays a run exactly."""
