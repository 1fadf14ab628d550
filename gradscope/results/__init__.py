"""The results of the commands, as plain frozen types, and their JSON envelope."""
