"""What the commands share: options, sources of rows, and output as tables, JSON and messages."""
