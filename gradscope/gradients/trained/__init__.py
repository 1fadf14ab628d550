"""A step as its trainer computed it: settings that the folder lacks, reduced precision, dropout, the router's term."""
