"""One leaf: a Lance table with the namespace's field ids, holding the rows of one partition."""
