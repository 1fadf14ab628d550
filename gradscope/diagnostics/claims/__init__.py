"""A run held against what papers say: claims as declared records, evidence gathered once, verdicts by one rule."""
