"""The distribution of pass rates over prompts: fits of it, bounds over all there could be, and what each forecasts."""
