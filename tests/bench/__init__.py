"""The measuring tools: that they run, and what in them would falsify a result unseen."""
