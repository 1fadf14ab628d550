"""Trainers other than TRL: the loss of each, declared from its own arguments under its own names."""
