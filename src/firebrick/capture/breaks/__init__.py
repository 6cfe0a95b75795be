"""Graph breaks: their catalogue, and code that goes on behind them."""
