"""A report as one self-contained HTML file: no network, no fonts, no framework."""
