"""Tables, each declared once: which records, which of their fields, in which words."""
