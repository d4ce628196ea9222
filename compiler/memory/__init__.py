"""Where values lie: storage by aliasing, lifetimes, plans and their check."""
