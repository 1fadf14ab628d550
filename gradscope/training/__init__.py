"""Reference runs: TRL's GRPOTrainer with gradscope's advantages plugged in."""
