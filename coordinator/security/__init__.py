"""Authentication of clients: log-ins, tokens, certificates."""
