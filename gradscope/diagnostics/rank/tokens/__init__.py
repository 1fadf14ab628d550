"""Ranks of token rows under any advantage, and what a step is made of token by token."""
