"""Where values lie in memory: aliasing, lifetimes, plans and their check."""
