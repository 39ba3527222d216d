"""Who somebody is: log-ins, tokens, certificates."""
