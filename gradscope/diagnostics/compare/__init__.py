"""`gradscope compare`: runs paired by seed, in outcomes and in gradients."""
