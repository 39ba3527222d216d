"""Certificates, and who shows them."""
