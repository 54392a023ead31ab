"""The partition manager, which is elected: maps key ranges to partition servers, balances, splits and merges them."""
