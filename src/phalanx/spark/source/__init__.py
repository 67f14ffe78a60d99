"""The Python data source `format("phalanx")`: batch and stream reads and writes."""
