"""TRL's GRPOTrainer with our advantages, rewards and critic plugged in."""
