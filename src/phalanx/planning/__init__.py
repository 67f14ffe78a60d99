"""Pure planning: predicate and specs to manifest filters, and specs to join keys."""
