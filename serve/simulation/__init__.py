"""Simulation: a fleet in virtual time, run by the scheduler, the promises and the routing table of the service itself."""
