"""Which rows a snapshot inserted, deleted and updated: the storage side of the change data feed."""
