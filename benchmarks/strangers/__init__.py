"""Small runs by TRL's own GRPOTrainer, replayed and ranked by gradscope and judged by plain autograd."""
