"""Where results go: streams, progress, folders, documents."""
