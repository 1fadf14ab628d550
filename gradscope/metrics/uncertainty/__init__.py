"""How sure a number is: bootstraps, closed-form intervals, jackknife, paired tests, trends."""
