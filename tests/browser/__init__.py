"""The page in a real browser, over invented groups and over a real daemon."""
