"""Elected; maps key ranges to partition servers, balances, splits, merges."""
