"""What happens when a stage fails or load is high: breakers, quarantine, degradation, autoscaling."""
