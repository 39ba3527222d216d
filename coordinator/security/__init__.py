"""Who is at the other end, and how nobody else listens: certificates."""
