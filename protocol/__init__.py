"""The wire protocol: bytes to messages and back. Pure; imports nothing else of the project."""
