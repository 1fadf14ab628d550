"""Results as files: JSON documents, CSV tables, JUnit, annotations of GitHub."""
