"""Strong mode: staged transactions, the one commit that publishes them, and foreign writes."""
