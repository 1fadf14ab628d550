"""From a result object to a reader: tables, figures, files, wording."""
