"""What happens when a stage or a version fails or load is high: breakers, quarantine, degradation, autoscaling, rollout."""
