"""The version of this package: the ground floor, so that no room imports the package's front door to learn it."""

__version__ = "0.1.0"
