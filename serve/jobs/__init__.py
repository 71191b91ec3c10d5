"""Long texts spoken in the background: their records, their plans, and the runner that speaks them part by part."""
