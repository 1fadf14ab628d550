"""A step as its trainer computed it: what the folder does not tell, reduced precision, dropout, the router's term."""
