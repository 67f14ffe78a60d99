"""Operations that maintain a table: health, rewrite, vacuum, erase, verify, indexes, upgrade."""
