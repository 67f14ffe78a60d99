"""What a query pushes down to a scan: conditions, aggregates and partitioning."""
