"""Ranks of token rows, under any advantage."""
