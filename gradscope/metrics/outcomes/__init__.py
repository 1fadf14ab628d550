"""What rewards alone say: dead groups, the i.i.d. prediction and its gap, pass@k, difficulty, forecasts."""
