"""One model on several processes: each rank holds its heads, all compute every plan together."""
