"""Stand-ins with the real interfaces and a mean streak."""
