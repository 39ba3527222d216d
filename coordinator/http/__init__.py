"""The HTTP listener: metrics, health, JSON, and the page. Read-only."""
