"""Fleet: many replicas of unequal speed, on a real cluster with engines that compute nothing and in virtual time."""
