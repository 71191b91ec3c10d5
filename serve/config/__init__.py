"""What one environment's YAML file may say, and how a wrong one is answered."""
