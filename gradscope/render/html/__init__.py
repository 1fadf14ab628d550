"""A report as one HTML file that needs nothing beside itself: no network, no fonts, no framework."""
