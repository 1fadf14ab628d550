"""What the tokens of a log say of the policy that sampled them: ratios to the trainer's, means over tokens, lags."""
