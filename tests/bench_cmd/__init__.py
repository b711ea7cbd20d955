"""The benchmark: its arithmetic, its player, its report."""
