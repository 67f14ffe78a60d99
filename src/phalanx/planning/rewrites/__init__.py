"""The steps of planning a rewrite of data files: filter, group and select."""
