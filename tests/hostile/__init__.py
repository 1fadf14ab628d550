"""Damage of every kind, made on purpose: what the commands make of it, and what a campaign of a night found."""
