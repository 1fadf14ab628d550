"""Ranks of rollout rows: groups and sub-groups, null models, intervals, geometry."""
